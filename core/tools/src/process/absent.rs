//! The registry where the engine runs no commands.
//!
//! Neighbours: none.

/// Remembers which processes commands have left running. On this system the engine runs no commands, so there
/// are none.
#[derive(Clone, Debug, Default)]
pub struct ProcessRegistry {}

impl ProcessRegistry {
    /// A registry without processes.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many finished calls still have processes running: none.
    pub fn stray_calls(&self) -> usize {
        0
    }

    /// Ends all processes of this registry: there are none.
    pub async fn kill_all(&self) {}
}
