//! Identifiers: cheap to clone, typed from the decoder on, plain strings on the wire.
//!
//! Neighbours: none.

use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a string as it stands; nothing is checked.
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                Self(id.into())
            }

            /// The string on the wire.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), &*self.0)
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self::new(id)
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self::new(id)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                Ok(Self(Arc::from(String::deserialize(d)?)))
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string" })
            }
        }
    };
}

string_id! {
    /// A conversation thread. Ours are UUIDs of version 7, so they sort by time of creation.
    ThreadId
}

string_id! {
    /// A turn. A fork shares the turns of its source, and so their ids.
    TurnId
}

string_id! {
    /// An item, unique on its branch: `<depth of the turn>.<ordinal in the turn>`, or a tool
    /// call's own id as its model gave it.
    ItemId
}

impl ThreadId {
    /// A new id, later in order than every id made before it on this machine.
    pub fn generate() -> Self {
        Self::new(uuid::Uuid::now_v7().to_string())
    }
}

impl TurnId {
    /// A new id, later in order than every id made before it on this machine.
    pub fn generate() -> Self {
        Self::new(uuid::Uuid::now_v7().to_string())
    }
}

/// The id of a JSON-RPC request: a number or a string, echoed as it came.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RequestId {
    /// A whole number.
    Number(i64),
    /// Any string.
    String(String),
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::String(s) => s.fmt(f),
        }
    }
}
