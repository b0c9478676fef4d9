//! Which model the demo uses, and why that one.
//!
//! Neighbours: none.

use raddle::engine::models::{FoundModels, Models, ModelsConfig, TimeLimits};
use raddle::protocol::ModelRef;

/// The provider of the models that need nothing.
const BUILTIN: &str = "builtin";

/// The model, and how it came to be the one.
pub(crate) struct Choice {
    /// All that the machine has.
    pub(crate) models: Models,
    /// The one to use.
    pub(crate) model: ModelRef,
    /// Why, in half a sentence.
    pub(crate) reason: String,
}

impl Choice {
    /// Takes the model that is wanted, else what the machine has: a key, a local server, the built-in script model.
    ///
    /// # Errors
    /// A sentence, when the wanted model is not there.
    pub(crate) async fn make(wanted: Option<ModelRef>) -> Result<Self, String> {
        if let Some(model) = wanted {
            let models = if model.provider == BUILTIN {
                // Nobody else needs to be asked.
                Models::new(ModelsConfig::default())
            } else {
                find().await.models
            };
            models.resolve(&model).await.map_err(|error| format!("--model {model}: {error}"))?;
            return Ok(Self { models, model, reason: "as --model says".to_owned() });
        }
        let found = find().await;
        let reason = reason(is_set, found.default.as_ref());
        let model = found.default.unwrap_or_else(script);
        Ok(Self { models: found.models, model, reason })
    }

    /// Whether the model does what a script in the prompt says.
    pub(crate) fn is_scripted(&self) -> bool {
        self.model == script()
    }
}

fn script() -> ModelRef {
    ModelRef::new(BUILTIN, "script")
}

async fn find() -> FoundModels {
    Models::from_environment(|name| std::env::var(name).ok(), TimeLimits::default()).await
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| !value.trim().is_empty())
}

/// Why this was the default. It names variables and no values: an address may hold a password.
fn reason(is_set: impl Fn(&str) -> bool, default: Option<&ModelRef>) -> String {
    let named = if is_set("RADDLE_MODEL") { ", RADDLE_MODEL asks for it" } else { "" };
    match (is_set("OPENAI_API_KEY"), default) {
        (true, Some(_)) => {
            let base = if is_set("OPENAI_BASE_URL") { " and OPENAI_BASE_URL are" } else { " is" };
            format!("OPENAI_API_KEY{base} set{named}")
        }
        (true, None) => {
            "OPENAI_API_KEY is set, but its provider named no model: RADDLE_MODEL can name one, and \
             RADDLE_LOG=warn tells what went wrong. So this is the built-in model that recites a script"
                .to_owned()
        }
        (false, Some(_)) => {
            format!("OPENAI_API_KEY is not set, but a model server runs on this machine{named}")
        }
        (false, None) => {
            "OPENAI_API_KEY is not set and no model server runs on this machine, so this is the \
             built-in model that recites a script"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_what_was_found() {
        let some = ModelRef::new("openai", "m");
        let key = |name: &str| name == "OPENAI_API_KEY";
        assert_eq!(reason(key, Some(&some)), "OPENAI_API_KEY is set");
        assert_eq!(
            reason(|_| true, Some(&some)),
            "OPENAI_API_KEY and OPENAI_BASE_URL are set, RADDLE_MODEL asks for it"
        );
        assert!(reason(key, None).contains("named no model"));
        assert!(reason(|_| false, Some(&some)).contains("a model server runs on this machine"));
        assert!(reason(|_| false, None).contains("no model server"));
    }
}
