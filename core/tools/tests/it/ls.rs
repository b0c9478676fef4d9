//! The tool `ls`.

use std::fs;

use serde_json::json;

use crate::support::World;

#[tokio::test]
async fn entries_are_sorted_and_marked() {
    let world = World::new();
    for file in ["b.txt", ".hidden", "a.txt", "B.txt"] {
        world.write(file, "x");
    }
    fs::create_dir(world.path("dir")).expect("makes");
    let expected = ".hidden\nB.txt\na.txt\nb.txt\ndir/\n";
    assert_eq!(world.text("ls", json!({})).await, expected);
    assert_eq!(world.text("ls", json!({"path": "."})).await, expected);
    assert_eq!(world.text("ls", json!({"path": null, "limit": "", "unknown": 1})).await, expected);
    assert_eq!(world.text("ls", json!({"path": world.cx.cwd})).await, expected);
    assert_eq!(world.text("ls", json!({"path": "dir"})).await, "[the directory is empty]\n");
}

#[tokio::test]
async fn what_is_over_the_limit_is_counted() {
    let world = World::new();
    for n in 0..1_100 {
        world.write(&format!("{n:04}"), "");
    }
    let text = world.text("ls", json!({})).await;
    assert_eq!(text.lines().count(), 501);
    assert!(text.starts_with("0000\n0001\n"), "{text}");
    assert!(text.contains("\n0499\n[500 of 1100 entries; 600 more are left out"), "{text}");
    let text = world.text("ls", json!({"limit": "2"})).await;
    assert!(text.starts_with("0000\n0001\n[2 of 1100 entries; 1098 more"), "{text}");
    let text = world.text("ls", json!({"limit": 1_000_000})).await;
    assert_eq!(text.lines().count(), 1_100);
    assert!(world.refusal("ls", json!({"limit": 0})).await.contains("at least 1"));
}

#[tokio::test]
async fn the_byte_cap_holds_for_long_names() {
    let world = World::new();
    for n in 0..1_000 {
        world.write(&format!("{n:04}{}", "x".repeat(196)), "");
    }
    let text = world.text("ls", json!({"limit": 1_000})).await;
    assert!(text.contains("[254 of 1000 entries; 746 more are left out"), "{text}");
}

#[tokio::test]
async fn r37_paths_are_only_paths() {
    let world = World::new();
    for path in ["--help", "-rf", "missing", "missing/deeper"] {
        let text = world.refusal("ls", json!({ "path": path })).await;
        assert_eq!(text, format!("cannot list {path}: no such file or directory"));
    }
    world.write("file", "12345");
    let text = world.refusal("ls", json!({"path": "file"})).await;
    assert_eq!(text, "file is a file of 5 bytes, not a directory; use read to see it");
    let text = world.refusal("ls", json!({"path": "file/x"})).await;
    assert!(text.ends_with("a part of the path is not a directory"), "{text}");
    assert!(world.refusal("ls", json!({"path": "a\0b"})).await.contains("must name a directory"));
    let text = world.refusal("ls", json!({"path": "x".repeat(5_000)})).await;
    assert!(text.ends_with("the name is too long"), "{text}");
}

#[tokio::test]
async fn a_cancelled_call_says_so() {
    let world = World::new();
    world.write("file", "");
    world.cx.cancel.cancel();
    assert!(world.refusal("ls", json!({})).await.starts_with("cancelled before it was done"));
}

#[cfg(unix)]
mod unix {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::support::{is_root, make_fifo};

    #[tokio::test]
    async fn links_show_what_they_lead_to_and_loops_end() {
        let world = World::new();
        world.write("file", "");
        fs::create_dir(world.path("dir")).expect("makes");
        for (target, link) in
            [("file", "1"), ("dir", "2"), ("nowhere", "3"), ("loop-b", "loop-a"), ("loop-a", "loop-b")]
        {
            symlink(target, world.path(link)).expect("links");
        }
        symlink(".", world.path("dir/self")).expect("links");
        assert_eq!(
            world.text("ls", json!({})).await,
            "1 -> file\n2 -> dir (directory)\n3 -> nowhere (broken)\ndir/\nfile\n\
             loop-a -> loop-b (a loop)\nloop-b -> loop-a (a loop)\n"
        );
        assert_eq!(world.text("ls", json!({"path": "2/self/self"})).await, "self -> . (directory)\n");
        let text = world.refusal("ls", json!({"path": "loop-a"})).await;
        assert_eq!(text, "cannot list loop-a: symbolic links go round in a loop");
    }

    #[tokio::test]
    async fn special_files_are_named_and_not_opened() {
        let world = World::new();
        make_fifo(&world.path("pipe"));
        let _socket = UnixListener::bind(world.path("socket")).expect("binds");
        assert_eq!(world.text("ls", json!({})).await, "pipe (named pipe)\nsocket (socket)\n");
        let text = world.refusal("ls", json!({"path": "pipe"})).await;
        assert_eq!(text, "pipe is a named pipe, not a directory");
        let text = world.refusal("ls", json!({"path": "/dev/null"})).await;
        assert_eq!(text, "/dev/null is a device, not a directory");
    }

    #[tokio::test]
    async fn odd_names_stay_on_one_line_and_are_never_half_decoded() {
        let world = World::new();
        for name in [&b"a\nb"[..], b"caf\xe9", "caf\u{e9}".as_bytes(), b"z\x1b[31m"] {
            // Some systems refuse names that are not UTF-8; the others matter still.
            if fs::write(world.path("").join(OsStr::from_bytes(name)), "").is_err() {
                return;
            }
        }
        let text = world.text("ls", json!({})).await;
        assert_eq!(text, "a\\nb\ncafé\ncaf\\xE9\nz\\u{1b}[31m\n");
    }

    #[tokio::test]
    async fn a_closed_directory_is_refused() {
        if is_root() {
            // Nothing is closed to root. The words are tested with `read`, on a file that even root cannot.
            return;
        }
        let world = World::new();
        fs::create_dir(world.path("closed")).expect("makes");
        fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o000)).expect("sets");
        let text = world.refusal("ls", json!({"path": "closed"})).await;
        assert_eq!(text, "cannot list closed: permission denied");
    }
}
