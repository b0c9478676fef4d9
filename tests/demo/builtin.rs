//! A machine without a key, a network or a model.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::command::Machine;

/// Where the demo looks for model servers. A developer's machine may run one, which is not what is tested here.
const LOCAL_PORTS: [u16; 4] = [11434, 8080, 1234, 8000];

/// What the demo may take on a loaded machine; on an idle one it is 4 seconds.
const DEMO_MAX: Duration = Duration::from_secs(60);

fn has_local_server() -> bool {
    let listens = |port: u16| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
    };
    LOCAL_PORTS.into_iter().any(listens)
}

#[tokio::test]
async fn p1_the_demo_works_with_nothing_and_loses_nothing() {
    let alone = !has_local_server();
    let arguments: &[&str] = if alone { &[] } else { &["--model", "builtin/script"] };
    let run = Machine::new().demo(arguments, &[]).await;
    run.succeeded_with_a_cut();
    run.has("builtin/script");
    if alone {
        run.has("OPENAI_API_KEY is not set and no model server runs on this machine");
    }
    assert!(run.took < DEMO_MAX, "it took {:?}", run.took);
    assert!(!run.text.contains('\x1b'), "colours are for terminals");

    // Both threads, interleaved as they came.
    let together = run.step(1);
    let marks: Vec<char> =
        together.lines().filter(|line| line.contains(" │")).filter_map(|line| line.chars().next()).collect();
    let switches = marks.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(switches >= 4, "{together}");

    // Tools: two that only read, and one that asks.
    let place = |what: &str| together.find(what).unwrap_or_else(|| panic!("`{what}` is not in\n{together}"));
    assert!(place("A │   > ls {\"path\":\".\"}") < place("A │     README.md"));
    assert!(place("A │   > read") < place("A │     # Warp and weft"));
    assert!(place("B │   > bash echo hello from the demo") < place("B │   ? approval: may bash run this?"));
    assert!(place("accept, this once") < place("B │     hello from the demo"));
    assert!(!together.contains("A │   ? approval"), "{together}");

    for lane in ["A", "B"] {
        let usage = format!("usage of thread {lane}: ");
        assert!(
            together[place(&usage) + usage.len()..].starts_with(|digit: char| ('1'..='9').contains(&digit))
        );
    }
    assert!(run.step(2).contains("A │ The loom stood"), "{}", run.text);
}

#[tokio::test]
async fn a_home_that_is_asked_for_stays() {
    let kept = tempfile::tempdir().unwrap();
    let home = kept.path().join("threads");
    let arguments = ["--model", "builtin/script", "--home", home.to_str().unwrap()];
    let run = Machine::new().demo(&arguments, &[]).await;
    run.succeeded_with_a_cut();
    run.has("it stays there");
    assert!(home.join("raddle.db").is_file());
}
