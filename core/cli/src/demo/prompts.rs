//! What the demo says to the model.
//!
//! Each prompt holds a mark, `DEMO-1` to `DEMO-3`, by which a fake provider knows it. The built-in script model gets a
//! script behind the same words.
//!
//! Neighbours: none.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};

const LIST: &str =
    "DEMO-1: list the files here and read README.md, then say in two sentences what this project is";
const RUN: &str =
    "DEMO-2: run the command `echo hello from the demo` with the bash tool, then say what it printed";
const STORY: &str = "DEMO-3: write a story of about 600 words about a loom";

/// The only command that the demo approves, and what the second prompt asks for.
pub(crate) const COMMAND: &str = "echo hello from the demo";

/// What stands between a prompt and its script.
const SCRIPT: &str = "\n\nscript:\n";

/// Bytes of a README in which its first line is looked for.
const README_BYTES_MAX: u64 = 64 * 1024;

/// Characters of that line that are repeated.
const TITLE_CHARS_MAX: usize = 60;

/// The three prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompts {
    /// For the first thread: two tools that only read.
    pub(crate) list: String,
    /// For the second: a tool that must be approved.
    pub(crate) run: String,
    /// Something long.
    pub(crate) story: String,
}

impl Prompts {
    /// For any model.
    pub(crate) fn natural() -> Self {
        Self { list: LIST.to_owned(), run: RUN.to_owned(), story: STORY.to_owned() }
    }

    /// For the built-in script model, which knows of the project only what is put into the script here.
    pub(crate) fn scripted(project: &Path) -> Self {
        let list = Script::new(LIST, 35)
            .says("I look around first: what is here, and what does the README say? Both tools only read, so nobody \
                   has to be asked.\n")
            .calls("ls", &json!({ "path": "." }))
            .answered()
            .says("And now the README.\n")
            .calls("read", &json!({ "path": "README.md", "limit": 6 }))
            .answered()
            .says(&about(project))
            .says(
                "That is all I can tell: I am builtin/script and recite what a script tells me. With OPENAI_API_KEY \
                 set, or with Ollama running, a real model answers here.",
            );
        let run = Script::new(RUN, 45)
            .says("A command can change things, so this thread asks before it runs one. The answer does not come \
                   from me but from the host.\n")
            .calls("bash", &json!({ "command": COMMAND }))
            .answered()
            .says("The command was allowed and ran. It printed what stands above, and that is what the engine told \
                   me, too: a call is written down before it runs, and its result before I see it.");
        let story = Script::new(STORY, 25).says(LOOM);
        Self { list: list.done(), run: run.done(), story: story.done() }
    }
}

/// The part of a prompt that is for people, and whether a script follows it.
pub(crate) fn without_script(prompt: &str) -> (&str, bool) {
    match prompt.split_once(SCRIPT) {
        Some((words, _)) => (words, true),
        None => (prompt, false),
    }
}

/// What a look at the folder tells.
fn about(project: &Path) -> String {
    let entries = match fs::read_dir(project).map_or(0, Iterator::count) {
        1 => "one entry".to_owned(),
        count => format!("{count} entries"),
    };
    let title = readme_title(project)
        .map_or("there is no README.md".to_owned(), |title| format!("its README.md begins with \"{title}\""));
    format!("This folder has {entries}, and {title}. ")
}

fn readme_title(project: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(project.join("README.md")).ok()?.take(README_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().map(|line| line.trim_start_matches('#').trim()).find(|line| !line.is_empty())?;
    Some(line.chars().take(TITLE_CHARS_MAX).collect())
}

/// A script under construction; see docs/script-model.md for the language.
struct Script {
    text: String,
    word_ms: u32,
    /// Words count as tokens: those that the model was given, and those of the reply so far.
    input: usize,
    output: usize,
}

impl Script {
    fn new(prompt: &str, word_ms: u32) -> Self {
        let input = prompt.split_whitespace().count();
        Self { text: format!("{prompt}{SCRIPT}"), word_ms, input, output: 0 }
    }

    /// Says a text word by word, at a pace that can be read along.
    fn says(mut self, text: &str) -> Self {
        for word in text.split_inclusive(' ') {
            self.output += 1;
            self.push(&format!("text {}\nwait {}ms\n", json!(word), self.word_ms));
        }
        self
    }

    fn calls(mut self, tool: &str, input: &Value) -> Self {
        self.push(&format!("call {tool} {input}\n"));
        self
    }

    /// Ends a reply; the next one begins when the engine has run the tools.
    fn answered(mut self) -> Self {
        self.usage();
        self.push("---\n");
        self.input += std::mem::take(&mut self.output);
        self
    }

    fn done(mut self) -> String {
        self.usage();
        self.text
    }

    fn usage(&mut self) {
        self.push(&format!("usage input={} output={}\n", self.input, self.output));
    }

    fn push(&mut self, statement: &str) {
        self.text.push_str(statement);
    }
}

const LOOM: &str = "The loom stood in the mill's last room, where the floor sloped toward the river. Everybody said that it \
    could not remember anything, and they were right about every other machine in the house. But when Marit took over \
    the night shift, she found half a pattern on it: forty rows of grey and one of red, and then nothing, as if somebody \
    had been called away in the middle of a thought.\n\
    She asked whose it was. Nobody knew. So she counted the threads, found the place where the red one had stopped, and \
    went on from there, one row at a time. The loom did not hurry her. It held each thread where it had been left, kept \
    its neighbours from crossing it, and waited between two strokes of the shuttle exactly as long as she did.\n\
    Toward morning the power failed. The lamps went out, the belts ran slack, and for a while there was only the river. \
    Marit put her hand on the cloth. Every row that she had woven was there, and the next one was not, which is all that a \
    weaver can ask of the dark. When the lamps came back, she looked for the red thread, found it, and began again.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_words_and_not_the_script() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("README.md"), "\n## A \"comb\"\nmore").unwrap();
        let scripted = Prompts::scripted(folder.path());
        let natural = Prompts::natural();
        assert_eq!(without_script(&scripted.list), (natural.list.as_str(), true));
        assert_eq!(without_script(&natural.story), (natural.story.as_str(), false));
        assert_eq!(
            about(folder.path()),
            "This folder has one entry, and its README.md begins with \"A \"comb\"\". "
        );
        assert!(scripted.list.contains(r#"text "\"A ""#), "{}", scripted.list);
    }

    #[test]
    fn the_second_prompt_asks_for_the_command_that_is_approved() {
        assert!(RUN.contains(COMMAND));
    }
}
