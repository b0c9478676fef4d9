//! The tool `read`.

use std::fs;

use raddle_tools::{OUTPUT_BYTES_MAX, READ_LINE_BYTES_MAX};
use serde_json::json;

use crate::support::World;

#[tokio::test]
async fn a_file_is_shown_as_it_is() {
    let world = World::new();
    for content in ["one\ntwo\n", "no line end", "\n\n", "dos\r\nends\r\n", "a real \u{fffd}, \u{2028}, 😀\n"]
    {
        world.write("file", content);
        assert_eq!(world.text("read", json!({"path": "file"})).await, content);
        assert_eq!(world.text("read", json!({"path": world.path("file")})).await, content);
        assert_eq!(world.text("read", json!({"path": "./../".to_owned() + &here(&world)})).await, content);
    }
}

fn here(world: &World) -> String {
    let name = world.cx.cwd.file_name().expect("a name");
    format!("{}/file", name.to_string_lossy())
}

#[tokio::test]
async fn a_range_says_what_else_there_is() {
    let world = World::new();
    world.write("file", "1\n2\n3\n4\n5");
    for (input, text) in [
        (json!({"offset": 2, "limit": 2}), "2\n3\n[lines 2 to 3 of 5; go on with offset 4]\n"),
        (json!({"offset": "2", "limit": "2"}), "2\n3\n[lines 2 to 3 of 5; go on with offset 4]\n"),
        (json!({"offset": 4.0}), "4\n5"),
        (json!({"offset": 5, "limit": 1}), "5"),
        (json!({"offset": 0, "limit": 1}), "1\n[lines 1 to 1 of 5; go on with offset 2]\n"),
        (json!({"offset": null, "limit": null, "encoding": "utf8"}), "1\n2\n3\n4\n5"),
        (json!({"limit": 1_000_000_000}), "1\n2\n3\n4\n5"),
    ] {
        let mut input = input;
        input["path"] = json!("file");
        assert_eq!(world.text("read", input.clone()).await, text, "{input}");
    }
    let text = world.refusal("read", json!({"path": "file", "offset": 6})).await;
    assert_eq!(text, "file has 5 lines; offset 6 is past its end");
}

#[tokio::test]
async fn the_caps_cut_and_count() {
    let world = World::new();
    world.write("lines", "x\n".repeat(5_000));
    let text = world.text("read", json!({"path": "lines", "limit": 4_000})).await;
    assert_eq!(text, "x\n".repeat(2_000) + "[lines 1 to 2000 of 5000; go on with offset 2001]\n");

    world.write("bytes", format!("{}\n", "y".repeat(999)).repeat(100));
    let text = world.text("read", json!({"path": "bytes"})).await;
    assert!(text.ends_with("\n[lines 1 to 51 of 100; go on with offset 52]\n"), "{text}");
    assert!(text.len() < OUTPUT_BYTES_MAX + 100);

    world.write("min.js", "é".repeat(2_500_000) + "\nnext\n");
    let text = world.text("read", json!({"path": "min.js"})).await;
    let left_out = 5_000_000 - READ_LINE_BYTES_MAX;
    let shown = "é".repeat(READ_LINE_BYTES_MAX / 2);
    assert_eq!(text, format!("{shown}[this line goes on for {left_out} more bytes]\nnext\n"));

    world.write("long", "z\n".repeat(20_000_000));
    let text = world.text("read", json!({"path": "long", "limit": 1})).await;
    assert_eq!(text, "z\n[lines 1 to 1, and more follow; go on with offset 2]\n");
    let text = world.text("read", json!({"path": "long", "offset": 19_999_999})).await;
    assert_eq!(text, "z\nz\n");
}

#[tokio::test]
async fn r35_what_is_not_utf8_text_is_named_and_never_half_decoded() {
    let world = World::new();
    for (content, words) in [
        (
            &b"const x = 1;\n// caf\xe9 note\n"[..],
            "not valid UTF-8: byte 0xE9 at offset 19 (26 bytes in all)",
        ),
        (b"n = 1\n\xd6\xd0\xce\xc4\n", "not valid UTF-8: byte 0xD6 at offset 6 (11 bytes in all)"),
        (b"\xff\xfeh\0i\0", "text in UTF-16, little-endian (6 bytes), and read shows only UTF-8"),
        (b"\x89PNG\r\n\x1a\nabc", "is a PNG image (11 bytes), not text"),
        (b"before\0after\n", "is binary data (13 bytes), not text"),
        (b"\0", "is binary data (1 bytes), not text"),
    ] {
        world.write("file", content);
        let text = world.refusal("read", json!({"path": "file", "limit": 1})).await;
        assert!(text.starts_with("file is ") && text.contains(words), "{text}");
        assert!(!text.contains(['\0', '\u{fffd}']), "{text}");
    }
    world.write("file", "\u{feff}marked\n");
    assert_eq!(world.text("read", json!({"path": "file"})).await, "marked\n");
}

#[tokio::test]
async fn r35_a_wrong_byte_far_inside_leaves_the_other_lines_readable() {
    let world = World::new();
    let mut content = "line\n".repeat(3_000).into_bytes();
    content.extend_from_slice(b"caf\xe9\nlast\n");
    world.write("file", content);
    let text = world.text("read", json!({"path": "file", "limit": 1})).await;
    assert_eq!(text, "line\n[lines 1 to 1 of 3002; go on with offset 2]\n");
    let text = world.refusal("read", json!({"path": "file", "offset": 2_999})).await;
    assert!(text.starts_with("line 3001 of file is not valid UTF-8: it holds the byte 0xE9"), "{text}");
    assert_eq!(world.text("read", json!({"path": "file", "offset": 3_002})).await, "last\n");
}

#[tokio::test]
async fn a_character_on_the_border_of_the_first_bytes_is_whole() {
    let world = World::new();
    for shift in 0..4 {
        let content = "x".repeat(shift) + &"😀\n".repeat(2_000);
        world.write("file", &content);
        assert_eq!(world.text("read", json!({"path": "file"})).await, content);
    }
}

#[tokio::test]
async fn missing_files_directories_and_empty_files_are_clear() {
    let world = World::new();
    world.write("empty", "");
    fs::create_dir(world.path("dir")).expect("makes");
    assert_eq!(world.text("read", json!({"path": "empty"})).await, "[the file is empty]\n");
    for (path, words) in [
        ("missing.txt", "cannot read missing.txt: no such file or directory"),
        ("--help", "cannot read --help: no such file or directory"),
        ("~/x", "cannot read ~/x: no such file or directory"),
        ("empty/x", "cannot read empty/x: a part of the path is not a directory"),
        ("dir", "dir is a directory; use ls to see what is in it"),
        ("", "invalid input for read: path must name a file"),
        ("a\0b", "invalid input for read: path must name a file"),
    ] {
        assert_eq!(world.refusal("read", json!({ "path": path })).await, words);
    }
}

#[tokio::test]
async fn wrong_inputs_say_what_would_be_right() {
    let world = World::new();
    for (input, words) in [
        (json!({}), "missing field `path`"),
        (json!({"path": 3}), "expected a string"),
        (json!({"path": "x", "limit": 0}), "limit must be at least 1"),
        (json!({"path": "x", "limit": -1}), "whole number of at least 0, got -1"),
        (json!({"path": "x", "offset": "ten"}), "whole number of at least 0, got \"ten\""),
    ] {
        let text = world.refusal("read", input).await;
        assert!(text.starts_with("invalid input for read: ") && text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn a_cancelled_call_says_so() {
    let world = World::new();
    world.write("file", "x\n");
    world.cx.cancel.cancel();
    let text = world.refusal("read", json!({"path": "file"})).await;
    assert_eq!(text, "cancelled before it was done; it had written nothing");
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::support::{is_root, make_fifo};

    #[tokio::test]
    async fn pipes_sockets_and_devices_are_not_opened() {
        let world = World::new();
        make_fifo(&world.path("pipe"));
        let _socket = UnixListener::bind(world.path("socket")).expect("binds");
        symlink("pipe", world.path("link")).expect("links");
        for (path, kind) in [
            ("pipe", "named pipe"),
            ("link", "named pipe"),
            ("socket", "socket"),
            ("/dev/zero", "device"),
            ("/dev/tty", "device"),
        ] {
            let text = world.refusal("read", json!({ "path": path })).await;
            assert_eq!(text, format!("{path} is a {kind}, not a regular file; it was not opened"));
        }
    }

    #[tokio::test]
    async fn links_are_followed_and_loops_end() {
        let world = World::new();
        world.write("file", "through\n");
        symlink("file", world.path("link")).expect("links");
        symlink("b", world.path("a")).expect("links");
        symlink("a", world.path("b")).expect("links");
        assert_eq!(world.text("read", json!({"path": "link"})).await, "through\n");
        let text = world.refusal("read", json!({"path": "a"})).await;
        assert_eq!(text, "cannot read a: symbolic links go round in a loop");
    }

    #[tokio::test]
    async fn a_closed_file_is_refused() {
        let world = World::new();
        world.write("closed", "x");
        fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o200)).expect("sets");
        let path = if is_root() {
            // Root reads anything but this: the kernel's own switches that can only be set.
            "/proc/sys/vm/compact_memory".to_owned()
        } else {
            "closed".to_owned()
        };
        if is_root() && !fs::exists(&path).expect("looks") {
            return;
        }
        let text = world.refusal("read", json!({ "path": path })).await;
        assert_eq!(text, format!("cannot read {path}: permission denied"));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn files_of_the_kernel_that_claim_no_size_are_read() {
        let world = World::new();
        let text = world.text("read", json!({"path": "/proc/self/status"})).await;
        assert!(text.starts_with("Name:\t"), "{text}");
    }
}
