//! The load server, as the process that benches run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use raddle_fakes::monotonic_nanos;

use crate::client::{Client, deltas};

/// A running load server, which ends when this is dropped.
struct Server {
    child: Child,
    base_url: String,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fake-provider"))
            .arg("--until-stdin-ends")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.strip_prefix("listening ").unwrap().trim().parse().unwrap();
        Self { child, base_url: format!("http://127.0.0.1:{port}/v1") }
    }

    async fn ask(&self, text: &str) -> Vec<String> {
        let mut client = Client::connect(&self.base_url).await;
        client.ask(text).await;
        assert_eq!(client.head().await.0, 200);
        let (chunks, end) = client.chunks().await;
        end.unwrap();
        chunks
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Also the proof that it does not outlive whoever holds its standard input.
        drop(self.child.stdin.take());
        let status = self.child.wait();
        if !std::thread::panicking() {
            assert!(status.unwrap().success());
        }
    }
}

#[tokio::test]
async fn a_flood_streams_many_deltas_in_few_writes() {
    let chunks = Server::start().ask("deltas=2000").await;
    let body = chunks.concat();
    let deltas = deltas(&body);
    assert_eq!(deltas.len(), 2000);
    assert_eq!((deltas[0].as_str(), deltas[1999].as_str()), ("w0 ", "w1999 "));
    assert!(body.ends_with("data: [DONE]\n\n"));
    assert!(body.contains(r#""completion_tokens":2000"#));
    assert!(chunks.len() < 100, "{} chunks", chunks.len());
}

#[tokio::test]
async fn a_paced_stream_carries_the_time_of_each_write() {
    let server = Server::start();
    let before = monotonic_nanos();
    let chunks = server.ask("deltas=20 rate=1000").await;
    let after = monotonic_nanos();
    let mut stamps = vec![before];
    stamps.extend(deltas(&chunks.concat()).iter().map(|delta| delta.trim_end().parse::<u64>().unwrap()));
    stamps.push(after);
    assert_eq!(stamps.len(), 22);
    assert!(stamps.is_sorted(), "{stamps:?}");
    // One event a write: 20 deltas and the end.
    assert_eq!(chunks.len(), 21);
    // No stream is faster than its rate; how much slower it gets is the machine's affair.
    assert!(stamps[20] - stamps[1] >= 18_000_000, "{stamps:?}");
}

#[tokio::test]
async fn many_streams_run_at_once() {
    let server = std::sync::Arc::new(Server::start());
    let mut streams = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let server = std::sync::Arc::clone(&server);
        streams.spawn(async move { deltas(&server.ask("deltas=10 rate=100").await.concat()).len() });
    }
    assert_eq!(streams.join_all().await, vec![10; 300]);
}

#[tokio::test]
async fn a_bad_directive_is_refused() {
    let server = Server::start();
    let mut client = Client::connect(&server.base_url).await;
    client.ask("deltas=many").await;
    let (status, body) = client.json().await;
    assert_eq!(status, 400);
    assert!(body["error"]["message"].as_str().unwrap().contains("deltas=many"));
}
