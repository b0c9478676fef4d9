//! Reading what a model sent: strict about what matters, lenient about what models get wrong.
//!
//! Neighbours: error.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::error::ToolError;

/// How many bytes of a wrong value an error repeats. The rest is cut on a character border.
pub const INPUT_EXCERPT_BYTES_MAX: usize = 80;

/// Reads a tool's input into its type.
///
/// Lenient: `null` or nothing for an input without required fields, and an object that was sent as a string
/// of JSON. Unknown fields are ignored unless the type says otherwise.
///
/// An approval gate should read the input with this function and the tool's own type, so that it judges what
/// will run and nothing else.
///
/// # Errors
///
/// [`ToolError::InvalidInput`] when the input does not fit the type.
pub fn decode_input<T: DeserializeOwned>(tool: &str, input: Value) -> Result<T, ToolError> {
    let object = match input {
        Value::Object(fields) => fields,
        Value::Null => Map::new(),
        Value::String(text) => serde_json::from_str(&text).map_err(|_| {
            let shown = excerpt(&text);
            ToolError::invalid(tool, format!("expected a JSON object, got the text \"{shown}\""))
        })?,
        other => {
            let shown = excerpt(&other.to_string()).to_owned();
            return Err(ToolError::invalid(tool, format!("expected a JSON object, got {shown}")));
        }
    };
    T::deserialize(Value::Object(object)).map_err(|problem| {
        let problem = problem.to_string();
        ToolError::invalid(tool, excerpt_to(&problem, 4 * INPUT_EXCERPT_BYTES_MAX))
    })
}

/// The JSON Schema of a tool's input, made from its type: an object, without references, and without the
/// words that providers stumble over (`$schema`, `title`, `format`, a default of `null`).
pub fn input_schema<T: JsonSchema>() -> Value {
    fn plain(schema: &mut Schema) {
        for word in ["$schema", "title", "format"] {
            schema.remove(word);
        }
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
    }
    SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(RecursiveTransform(plain))
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// For `deserialize_with`: a whole number, also as a string of digits or as `3.0`; `null` and `""` mean
/// absent.
pub(crate) fn whole_number<'de, D: Deserializer<'de>>(source: D) -> Result<Option<u64>, D::Error> {
    let value = Value::deserialize(source)?;
    let read = match &value {
        Value::Null => return Ok(None),
        Value::String(text) if text.trim().is_empty() => return Ok(None),
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
        _ => None,
    };
    read.map(Some).ok_or_else(|| {
        let shown = value.to_string();
        D::Error::custom(format!("expected a whole number of at least 0, got {}", excerpt(&shown)))
    })
}

fn whole(number: f64) -> Option<u64> {
    // Up to 2^53 a double holds whole numbers exactly; no sensible input lies beyond.
    let exact = number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number);
    exact.then_some(number as u64)
}

fn excerpt(text: &str) -> &str {
    excerpt_to(text, INPUT_EXCERPT_BYTES_MAX)
}

fn excerpt_to(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Sample {
        /// A name.
        name: String,
        /// A count.
        #[serde(default, deserialize_with = "whole_number")]
        #[schemars(with = "u64")]
        count: Option<u64>,
    }

    fn count(value: Value) -> Result<Option<u64>, String> {
        decode_input::<Sample>("sample", json!({"name": "n", "count": value}))
            .map(|sample| sample.count)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_are_read_in_the_shapes_that_models_send() {
        for seven in [json!(7), json!("7"), json!(" 7 "), json!(7.0)] {
            assert_eq!(count(seven.clone()), Ok(Some(7)), "{seven}");
        }
        for absent in [json!(null), json!(""), json!("  ")] {
            assert_eq!(count(absent.clone()), Ok(None), "{absent}");
        }
        for wrong in [json!(-1), json!(1.5), json!("seven"), json!("-3"), json!(true), json!([7])] {
            let error = count(wrong.clone()).expect_err("a wrong number");
            assert!(error.contains("whole number of at least 0"), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_object_in_a_string_and_unknown_fields_are_read() {
        let twice = json!("{\"name\": \"n\", \"extra\": [1]}");
        let sample: Sample = decode_input("sample", twice).expect("reads");
        assert_eq!(sample, Sample { name: "n".into(), count: None });
    }

    #[test]
    fn a_wrong_input_is_named_and_not_repeated_at_length() {
        for (input, words) in [
            (json!(null), "missing field `name`"),
            (json!([]), "expected a JSON object, got []"),
            (json!("plain"), "expected a JSON object, got the text \"plain\""),
            (json!({"name": 3}), "expected a string"),
            (json!({"name": null}), "expected a string"),
        ] {
            let error = decode_input::<Sample>("sample", input).expect_err("wrong");
            assert!(error.to_string().contains(words), "{error}");
        }
        let long = "é".repeat(100_000);
        for input in [json!(long), json!([long]), json!({"name": [long], "count": long})] {
            let error = decode_input::<Sample>("sample", input).expect_err("wrong");
            assert!(error.to_string().len() < 500);
        }
    }

    #[test]
    fn the_schema_is_a_plain_object() {
        assert_eq!(
            input_schema::<Sample>(),
            json!({
                "type": "object",
                "properties": {
                    "name": {"description": "A name.", "type": "string"},
                    "count": {"description": "A count.", "type": "integer", "minimum": 0},
                },
                "required": ["name"],
            })
        );
    }
}
