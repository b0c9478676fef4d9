//! The load server: a provider that generates its deltas, for benches that run it as a process of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::http::Connection;
use crate::provider::{Ending, check_chat};
use crate::reply::{Framing, Reply};
use crate::request::{Request, last_user_text};
use crate::script::{Answer, Played, Service, bad_request, listen, serve};
use crate::sse;

/// How many bytes of events a flood puts into one write.
const WRITE_SIZE: usize = 16 * 1024;

/// The most deltas that one request may ask for.
const MOST_DELTAS: u64 = 10_000_000;

/// The highest rate, in deltas a second, that one request may ask for.
const MOST_RATE: u64 = 10_000;

/// A text delta whose text is put between these two parts.
const BEFORE: &str = r#"data: {"id":"chatcmpl-fake","object":"chat.completion.chunk","created":0,"model":"fake-model","choices":[{"index":0,"delta":{"content":""#;
const AFTER: &str = "\"},\"finish_reason\":null}]}\n\n";

/// The machine's monotonic clock in nanoseconds (`CLOCK_MONOTONIC`), the same in every process on it.
#[cfg(unix)]
#[must_use]
pub fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock counts up from the machine's start, so neither part is negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The machine's clock in nanoseconds, the same in every process on it.
#[cfg(not(unix))]
#[must_use]
pub fn monotonic_nanos() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What one request asks for, in the words of its last user message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    deltas: u64,
    /// Deltas a second; without one, as fast as the client reads.
    rate: Option<u64>,
    /// The number of the request, which spreads paced streams over the period.
    number: u64,
}

impl Load {
    /// Reads `deltas=N` and `rate=N` out of a text; the words around them mean nothing.
    fn parse(text: &str, number: u64) -> Result<Option<Self>, String> {
        let deltas = directive(text, "deltas", MOST_DELTAS)?;
        let rate = directive(text, "rate", MOST_RATE)?;
        Ok(deltas.map(|deltas| Self { deltas, rate, number }))
    }

    pub(crate) async fn play(self, connection: &mut Connection) -> io::Result<Played> {
        connection.write_head(&Reply::stream()).await?;
        let left = match self.rate {
            None => {
                self.flood(connection).await?;
                false
            }
            Some(rate) => self.paced(connection, rate).await?,
        };
        if left {
            return Ok(Played { ending: Ending::ClientLeft, reusable: false });
        }
        let end = sse::finish("stop") + &sse::usage(10, self.deltas) + &sse::done();
        connection.write_piece(Framing::Chunked, end.as_bytes()).await?;
        connection.write_end(Framing::Chunked).await?;
        Ok(Played { ending: Ending::Complete, reusable: true })
    }

    /// All deltas as fast as they can be written, many to a write.
    async fn flood(self, connection: &mut Connection) -> io::Result<()> {
        let mut events = Vec::with_capacity(WRITE_SIZE + 1024);
        for index in 0..self.deltas {
            push_delta(&mut events, b'w', index);
            if events.len() >= WRITE_SIZE {
                connection.write_piece(Framing::Chunked, &events).await?;
                events.clear();
            }
        }
        connection.write_piece(Framing::Chunked, &events).await
    }

    /// Each delta in a write of its own, at its own time counted from the start: a late one is sent at once
    /// and does not push the ones after it. Says whether the client left.
    async fn paced(self, connection: &mut Connection, rate: u64) -> io::Result<bool> {
        let period = Duration::from_nanos(1_000_000_000 / rate);
        // Golden steps spread any number of streams evenly over the period, however many there will be.
        let turn = (self.number as f64 * 0.618_033_988_749_895).fract();
        let start = Instant::now() + period.mul_f64(turn);
        let mut event = Vec::with_capacity(256);
        for index in 0..self.deltas {
            let deadline = start + Duration::from_nanos(index.saturating_mul(1_000_000_000) / rate);
            if deadline > Instant::now() {
                tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = connection.client_left() => return Ok(true),
                }
            }
            event.clear();
            push_delta(&mut event, b' ', monotonic_nanos());
            connection.write_piece(Framing::Chunked, &event).await?;
        }
        Ok(false)
    }
}

/// Appends a delta whose text is `number`, after `mark` unless that is a space, and before a space.
fn push_delta(out: &mut Vec<u8>, mark: u8, number: u64) {
    out.extend_from_slice(BEFORE.as_bytes());
    if mark != b' ' {
        out.push(mark);
    }
    out.extend_from_slice(number.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(AFTER.as_bytes());
}

fn directive(text: &str, name: &str, most: u64) -> Result<Option<u64>, String> {
    let mut words = text.split_whitespace();
    let Some(value) = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(Some(number)),
        _ => Err(format!("{name}={value} is out of range: give a number from 1 to {most}")),
    }
}

/// A provider that obeys the last user message of each request and records nothing.
///
/// `deltas=2000` streams 2,000 deltas (`w0 `, `w1 `, …) as fast as the client reads, many to a write.
/// `deltas=500 rate=50` streams 50 a second, each in a write of its own; the text of each is
/// [`monotonic_nanos`] at its write and a space. Streams start at different places of the period, so that many
/// of them do not write at once. Any other text is answered with one short delta.
pub struct LoadServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl LoadServer {
    /// Listens on a port of the loopback address; 0 takes a free one. Call it inside a runtime.
    ///
    /// # Errors
    /// If the port cannot be had.
    pub fn bind(port: u16) -> io::Result<Self> {
        let (listener, address) = listen(port)?;
        Ok(Self { listener, address })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the future is dropped, or no connection can be accepted any more. `report` hears of bad
    /// requests.
    pub async fn run(self, report: impl Fn(&str) + Send + Sync + 'static) {
        serve(self.listener, Arc::new(LoadService { report, requests: AtomicU64::new(0) })).await;
    }
}

struct LoadService<R> {
    report: R,
    requests: AtomicU64,
}

impl<R: Fn(&str) + Send + Sync + 'static> LoadService<R> {
    fn chat(&self, request: &Request) -> Result<Answer, String> {
        check_chat(&request.body)?;
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let load = Load::parse(&last_user_text(&request.body), number)?;
        Ok(load.map_or_else(|| Answer::Reply(Reply::says("Nothing to stream.")), Answer::Load))
    }
}

impl<R: Fn(&str) + Send + Sync + 'static> Service for LoadService<R> {
    type Ticket = ();

    fn answer(&self, request: Request) -> ((), Answer) {
        let answer = match (request.method(), request.path()) {
            ("GET", "/v1/models") => Ok(Answer::Reply(Reply::models(&["fake-model"]))),
            ("POST", "/v1/chat/completions") => self.chat(&request),
            (method, path) => Err(format!("{method} {path} is nothing that this provider serves")),
        };
        let answer = answer.unwrap_or_else(|problem| {
            (self.report)(&problem);
            Answer::Reply(bad_request(&problem))
        });
        ((), answer)
    }

    fn ended(&self, (): (), _: Ending) {}

    fn fault(&self, fault: String) {
        (self.report)(&fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_among_other_words() {
        let flood = Load::parse("please deltas=2000 now", 3);
        assert_eq!(flood, Ok(Some(Load { deltas: 2000, rate: None, number: 3 })));
        let paced = Load::parse("rate=50\ndeltas=500", 0);
        assert_eq!(paced, Ok(Some(Load { deltas: 500, rate: Some(50), number: 0 })));
        assert_eq!(Load::parse("hello", 0), Ok(None));
    }

    #[test]
    fn a_directive_out_of_range_says_so() {
        assert!(Load::parse("deltas=0", 0).unwrap_err().contains("from 1 to 10000000"));
        assert!(Load::parse("deltas=5 rate=x", 0).unwrap_err().contains("rate=x"));
    }

    #[test]
    fn a_generated_delta_is_what_the_helper_writes() {
        let mut event = Vec::new();
        push_delta(&mut event, b'w', 7);
        let event = String::from_utf8(event).unwrap();
        let parse = |event: &str| -> serde_json::Value {
            serde_json::from_str(event.strip_prefix("data: ").unwrap().trim_end()).unwrap()
        };
        assert_eq!(parse(&event), parse(&sse::text("w7 ")));
    }
}
