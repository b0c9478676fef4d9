//! A client that shows what came over the wire and hides nothing.

use std::io;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// One connection to a provider.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) async fn connect(base_url: &str) -> Self {
        let address = base_url.strip_prefix("http://").unwrap().split('/').next().unwrap();
        Self { stream: BufReader::new(TcpStream::connect(address).await.unwrap()) }
    }

    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: fake\r\nAuthorization: Bearer secret\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).await.unwrap();
    }

    pub(crate) async fn ask(&mut self, text: &str) {
        self.send("POST", "/v1/chat/completions", &chat(&json!([user(text)]))).await;
    }

    pub(crate) async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        Ok(line.trim_end_matches("\r\n").to_owned())
    }

    /// Reads status and headers.
    pub(crate) async fn head(&mut self) -> (u16, Vec<String>) {
        let first = self.line().await.unwrap();
        let status = first.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await.unwrap();
            if line.is_empty() {
                return (status, headers);
            }
            headers.push(line.to_lowercase());
        }
    }

    /// Reads one HTTP chunk; an empty one is the end of the body.
    pub(crate) async fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let size = self.line().await?;
        let size = usize::from_str_radix(&size, 16).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).await?;
        chunk.truncate(size);
        Ok(chunk)
    }

    /// Reads chunks up to the end of the body or of the connection.
    pub(crate) async fn chunks(&mut self) -> (Vec<String>, io::Result<()>) {
        let mut chunks = Vec::new();
        loop {
            match self.chunk().await {
                Ok(chunk) if chunk.is_empty() => return (chunks, Ok(())),
                Ok(chunk) => chunks.push(String::from_utf8(chunk).unwrap()),
                Err(error) => return (chunks, Err(error)),
            }
        }
    }

    pub(crate) async fn body(&mut self, length: usize) -> Value {
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    pub(crate) async fn rest(&mut self) -> io::Result<String> {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest).await?;
        Ok(rest)
    }

    /// Reads a whole answer that has a length.
    pub(crate) async fn json(&mut self) -> (u16, Value) {
        let (status, headers) = self.head().await;
        let length = headers.iter().find_map(|header| header.strip_prefix("content-length: ")).unwrap();
        (status, self.body(length.parse().unwrap()).await)
    }
}

pub(crate) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

pub(crate) fn chat(messages: &Value) -> String {
    json!({ "model": "fake-model", "stream": true, "messages": messages }).to_string()
}

/// The text of all deltas in these events.
pub(crate) fn deltas(body: &str) -> Vec<String> {
    body.split("\n\n")
        .filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok())
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect()
}
