//! A host to measure: an engine in this process, and a provider in another.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use raddle::engine::models::{ModelConfig, Models, ModelsConfig, ProviderConfig};
use raddle::protocol::ModelRef;
use raddle::{Options, Raddle};

use crate::Failure;

/// The fake provider; ended when dropped.
pub(crate) struct ProviderProcess {
    child: Child,
    port: u16,
}

impl ProviderProcess {
    pub(crate) fn start(program: &Path) -> Result<Self, Failure> {
        let mut child = Command::new(program)
            .args(["--port", "0", "--until-stdin-ends"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} cannot be run: {error}", program.display()))?;
        let stdout = child.stdout.take().ok_or("the provider has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port =
            line.trim().strip_prefix("listening ").ok_or("the provider did not say where it listens")?;
        let port = port.parse()?;
        Ok(Self { child, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for ProviderProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens an engine that knows the fake provider, or only the built-in models.
pub(crate) async fn open(home: &Path, port: Option<u16>) -> Result<Raddle, Failure> {
    let mut config = ModelsConfig::default();
    let mut default_model = ModelRef::new("builtin", "echo");
    if let Some(port) = port {
        let mut provider = ProviderConfig::new("fake", format!("http://127.0.0.1:{port}/v1"));
        provider.models = vec![ModelConfig::new("fake-model")];
        config.providers = vec![provider];
        default_model = ModelRef::new("fake", "fake-model");
    }
    let options = Options {
        models: Some(Models::new(config)),
        default_model: Some(default_model),
        ..Options::in_home(home)
    };
    Ok(Raddle::open(options).await?)
}

/// A runtime as a host would have it.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
