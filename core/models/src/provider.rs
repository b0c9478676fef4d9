//! What every provider is to the rest of the engine.
//!
//! Neighbours: event, request.

use async_trait::async_trait;
use raddle_protocol::ModelInfo;

use crate::event::ModelStream;
use crate::request::ModelRequest;

/// A source of models: a configured one, a built-in one, or one that an extension brings.
#[async_trait]
pub trait Provider: Send + Sync {
    /// What its models are called by: `id/model`.
    fn id(&self) -> &str;

    /// Its models, as far as it knows them now. It may ask its server; it never fails, and never takes long.
    async fn models(&self) -> Vec<ModelInfo>;

    /// The facts about one model; nothing when it has no such model.
    async fn find(&self, id: &str) -> Option<ModelInfo> {
        self.models().await.into_iter().find(|info| info.id == id)
    }

    /// Asks a model. Returns at once: the work is done while the stream is polled, and whatever goes wrong is the
    /// stream's last item. Through [`ResolvedModel::stream`](crate::ResolvedModel::stream), a request for a model whose
    /// row says that it takes no images has none.
    fn stream(&self, request: ModelRequest) -> ModelStream;
}
