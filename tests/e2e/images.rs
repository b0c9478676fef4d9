//! Pictures beside a text: inline and by path, and what is refused.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use raddle::protocol::limits::{IMAGE_BYTES_MAX, IMAGES_MAX};
use raddle::protocol::methods::method;
use raddle::protocol::turn::{ImageInput, TurnStartParams, TurnSteerParams};
use raddle::protocol::{ErrorCode, ItemKind, RpcError, ThreadId};
use raddle_tests::{Client, Gate, Reply, Setup, World, agent_text};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest of a picture";

fn inline(mime_type: &str, bytes: &[u8]) -> ImageInput {
    ImageInput::Inline { mime_type: mime_type.to_owned(), data: BASE64_STANDARD.encode(bytes) }
}

fn by_path(path: impl Into<String>) -> ImageInput {
    ImageInput::Path { path: path.into() }
}

fn with(thread: &ThreadId, text: &str, images: Vec<ImageInput>) -> TurnStartParams {
    TurnStartParams { images, ..TurnStartParams::new(thread.clone(), text) }
}

async fn refused(client: &Client, thread: &ThreadId, image: ImageInput) -> RpcError {
    client.request::<method::TurnStart>(with(thread, "look", vec![image])).await.unwrap_err()
}

/// A world whose model takes pictures.
async fn seeing() -> World {
    let mut setup = Setup::default();
    for model in &mut setup.models {
        model.images = true;
    }
    setup.start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_reach_the_model_and_the_history() {
    let mut world = seeing().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let file = world.project().join("shot.gif");
    std::fs::write(&file, b"GIF89a and more").unwrap();
    world.provider().push(Reply::says("I see."));
    let images = vec![inline("image/png", PNG), by_path(file.display().to_string())];
    let turn = client.request::<method::TurnStart>(with(&thread, "", images)).await.unwrap().turn_id.unwrap();
    let turn = client.end(&turn).await;
    let ItemKind::UserMessage { images, .. } = &turn.items[0].kind else { unreachable!() };
    assert_eq!(images[0].data, BASE64_STANDARD.encode(PNG));
    assert_eq!((images[1].mime_type.as_str(), images[1].path.as_deref()), ("image/gif", file.to_str()));
    // What was said stays what it was, whatever becomes of the file.
    std::fs::remove_file(&file).unwrap();
    world.reopen().await;
    let client = world.client().await;
    world.provider().push(Reply::says("Still."));
    client.run(&thread, "And now?").await;
    for number in [0, 1] {
        let request = world.provider().request(number).await;
        let sent = request.images();
        assert_eq!(sent.len(), 2, "request {number}");
        assert_eq!(sent[0].data, BASE64_STANDARD.encode(PNG));
        assert_eq!(sent[1].mime_type, "image/gif");
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_picture_is_refused_before_anything_happens() {
    let world = seeing().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let place = |name: &str| world.project().join(name).display().to_string();
    std::fs::write(place("text.png"), "no picture").unwrap();
    std::fs::create_dir(place("directory.png")).unwrap();
    std::fs::write(place("empty.png"), "").unwrap();
    let big = std::fs::File::create(place("big.png")).unwrap();
    big.set_len(IMAGE_BYTES_MAX as u64 + 1).unwrap();
    let pipe = place("pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for image in [
        by_path("shot.png"),
        by_path(place("missing.png")),
        by_path(place("text.png")),
        by_path(place("directory.png")),
        by_path(place("empty.png")),
        by_path(place("big.png")),
        by_path(pipe),
        inline("image/jpeg", PNG),
        inline("image/svg+xml", b"<svg/>"),
        inline("image/png", b""),
        ImageInput::Inline { mime_type: "image/png".to_owned(), data: "not base64!".to_owned() },
        inline("image/png", &[PNG, &vec![0; IMAGE_BYTES_MAX]].concat()),
    ] {
        let shown = format!("{image:?}");
        let error = refused(&client, &thread, image).await;
        assert_eq!(error.code, ErrorCode::InvalidParams, "{}", &shown[..shown.len().min(80)]);
        assert!(error.message.contains("images[0]"), "{}", error.message);
    }
    let many = vec![inline("image/png", PNG); IMAGES_MAX + 1];
    let error = client.request::<method::TurnStart>(with(&thread, "look", many)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidParams);
    assert!(client.read(&thread).await.turns.is_empty());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_may_bring_a_picture_and_a_blind_model_is_told_of_it() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).stop());
    let turn = client.start(&thread, "Hi").await;
    client.turn_until(&turn, "half", |turn| agent_text(turn) == "Half").await;
    let steer = TurnSteerParams {
        images: vec![inline("image/png", PNG)],
        ..TurnSteerParams::new(thread.clone(), turn.clone(), "See this")
    };
    client.request::<method::TurnSteer>(steer).await.unwrap();
    world.provider().push(Reply::says("I cannot."));
    gate.open();
    client.end(&turn).await;
    let request = world.provider().request(1).await;
    assert!(request.images().is_empty());
    let said = request.messages().last().unwrap()["content"].as_str().unwrap().to_owned();
    assert!(said.starts_with("See this") && said.contains("takes no pictures"), "{said}");
    world.finish().await;
}
