//! What the demo prints, and how it looks.
//!
//! Two threads write at the same time, so text is cut into lines, each with the mark of its thread: `A │ …`. While only
//! one thread writes, its words appear as they come.
//!
//! Neighbours: report.

use std::io::{self, IsTerminal as _, Write};

use super::report::Lane;

/// Characters of a line, its mark not counted.
const WIDTH: usize = 76;

/// How a text is to look on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// As it is.
    Plain,
    /// Stands out.
    Bold,
    /// Stands back.
    Dim,
    /// Good news.
    Good,
    /// Bad news.
    Bad,
}

impl Style {
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Bold => Some("1"),
            Self::Dim => Some("2"),
            Self::Good => Some("32"),
            Self::Bad => Some("31"),
        }
    }
}

/// How a thread's text reaches the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// By whole lines, since several threads write.
    Lines,
    /// By words, since only one does.
    Words,
}

/// The screen.
pub(crate) struct Screen<W> {
    out: W,
    colour: bool,
    flow: Flow,
    lanes: [Line; Lane::ALL.len()],
}

/// A line of a thread that is not at its end.
struct Line {
    style: Style,
    text: String,
    /// Bytes of `text` that are on the screen already.
    shown: usize,
    /// A word that may go on.
    word: String,
}

impl Default for Line {
    fn default() -> Self {
        Self { style: Style::Plain, text: String::new(), shown: 0, word: String::new() }
    }
}

impl Screen<io::Stdout> {
    /// The standard output, with colours when a person looks at it.
    pub(crate) fn stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let colour = io::stdout().is_terminal() && !refused && !dumb;
        Self::new(io::stdout(), colour)
    }
}

impl<W: Write> Screen<W> {
    /// A screen that prints lines.
    pub(crate) fn new(out: W, colour: bool) -> Self {
        Self { out, colour, flow: Flow::Lines, lanes: Default::default() }
    }

    /// Changes how the threads' text is shown from now on.
    pub(crate) fn flow(&mut self, flow: Flow) {
        self.flow = flow;
    }

    /// A heading, with a free line before it.
    pub(crate) fn heading(&mut self, text: &str) -> io::Result<()> {
        self.end_lines()?;
        let text = self.paint(Style::Bold, text);
        writeln!(self.out, "\n{text}\n")
    }

    /// A line that belongs to no thread.
    pub(crate) fn line(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.end_lines()?;
        let text = self.paint(style, &clean(text));
        writeln!(self.out, "{text}")
    }

    /// A paragraph that belongs to no thread.
    pub(crate) fn paragraph(&mut self, style: Style, text: &str) -> io::Result<()> {
        for line in wrapped(text, WIDTH) {
            self.line(style, &line)?;
        }
        Ok(())
    }

    /// A fact under its name; its further lines stand under the first.
    pub(crate) fn fact(&mut self, name: &str, text: &str) -> io::Result<()> {
        const NAME: usize = 10;
        for (at, line) in wrapped(text, WIDTH - NAME).into_iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            self.line(Style::Plain, &format!("{name:<NAME$}{line}"))?;
        }
        Ok(())
    }

    /// More of a thread's text. What it said in another style before is at its end now.
    pub(crate) fn say(&mut self, lane: Lane, style: Style, text: &str) -> io::Result<()> {
        if self.lanes[lane.index()].style != style {
            self.end_line(lane)?;
            self.lanes[lane.index()].style = style;
        }
        for letter in text.chars() {
            match letter {
                '\n' => {
                    self.end_word(lane)?;
                    self.break_line(lane, true)?;
                }
                letter if letter.is_whitespace() => {
                    self.end_word(lane)?;
                    self.lanes[lane.index()].text.push(' ');
                }
                // A model's text must not steer the terminal.
                letter if letter.is_control() => {}
                letter => {
                    self.lanes[lane.index()].word.push(letter);
                    if self.lanes[lane.index()].word.chars().count() >= WIDTH {
                        self.end_word(lane)?;
                    }
                }
            }
        }
        if self.flow == Flow::Words { self.show(lane) } else { Ok(()) }
    }

    /// A remark about a thread, on lines of its own; `first` stands before the first line.
    pub(crate) fn note(&mut self, lane: Lane, style: Style, first: &str, text: &str) -> io::Result<()> {
        self.end_line(lane)?;
        let indent = first.chars().count();
        for (at, line) in wrapped(text, WIDTH.saturating_sub(indent)).into_iter().enumerate() {
            let before = if at == 0 { first.to_owned() } else { " ".repeat(indent) };
            let (mark, line) = (self.mark(lane), self.paint(style, &format!("{before}{line}")));
            writeln!(self.out, "{mark} {line}")?;
        }
        Ok(())
    }

    /// A line that a thread quotes, cut at the screen's width.
    pub(crate) fn quote(&mut self, lane: Lane, style: Style, line: &str) -> io::Result<()> {
        self.end_line(lane)?;
        let line = clean(&line.replace('\t', "    "));
        let line = match line.char_indices().nth(WIDTH - 6) {
            Some((at, _)) => format!("{} …", &line[..at]),
            None => line,
        };
        let (mark, line) = (self.mark(lane), self.paint(style, &format!("    {line}")));
        writeln!(self.out, "{mark} {line}")
    }

    /// Shows what a thread has said so far as a line of its own, if it is in the middle of one.
    pub(crate) fn end_line(&mut self, lane: Lane) -> io::Result<()> {
        self.end_word(lane)?;
        self.break_line(lane, false)
    }

    /// [`end_line`](Self::end_line) of every thread.
    pub(crate) fn end_lines(&mut self) -> io::Result<()> {
        for lane in Lane::ALL {
            self.end_line(lane)?;
        }
        Ok(())
    }

    fn end_word(&mut self, lane: Lane) -> io::Result<()> {
        let line = &self.lanes[lane.index()];
        if line.word.is_empty() {
            return Ok(());
        }
        if line.text.chars().count() + line.word.chars().count() > WIDTH && !line.text.is_empty() {
            self.break_line(lane, false)?;
        }
        let line = &mut self.lanes[lane.index()];
        let word = std::mem::take(&mut line.word);
        line.text.push_str(&word);
        Ok(())
    }

    fn break_line(&mut self, lane: Lane, even_if_empty: bool) -> io::Result<()> {
        self.show(lane)?;
        let line = &mut self.lanes[lane.index()];
        let is_empty = line.shown == 0;
        (line.text, line.shown) = (String::new(), 0);
        match (is_empty, even_if_empty) {
            (false, _) => writeln!(self.out),
            (true, true) => {
                let mark = self.mark(lane);
                writeln!(self.out, "{mark}")
            }
            (true, false) => Ok(()),
        }
    }

    /// Puts on the screen what is not there of a line, but for the space at its end.
    fn show(&mut self, lane: Lane) -> io::Result<()> {
        let line = &self.lanes[lane.index()];
        let end = line.text.trim_end().len();
        if line.shown >= end {
            return Ok(());
        }
        let rest = self.paint(line.style, &line.text[line.shown..end]);
        if line.shown == 0 {
            let mark = self.mark(lane);
            write!(self.out, "{mark} {rest}")?;
        } else {
            write!(self.out, "{rest}")?;
        }
        self.lanes[lane.index()].shown = end;
        self.out.flush()
    }

    fn mark(&self, lane: Lane) -> String {
        let mark = format!("{lane} │");
        if !self.colour {
            return mark;
        }
        let code = match lane {
            Lane::A => "36",
            Lane::B => "35",
        };
        format!("\x1b[{code}m{mark}\x1b[0m")
    }

    fn paint(&self, style: Style, text: &str) -> String {
        match style.code() {
            Some(code) if self.colour => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// A text without what would steer a terminal.
fn clean(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// A text in lines of at most `width` characters; a longer word has its own line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&clean(word));
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(screen: Screen<Vec<u8>>) -> String {
        String::from_utf8(screen.out).unwrap()
    }

    #[test]
    fn two_threads_share_the_screen_by_lines() {
        let mut screen = Screen::new(Vec::new(), false);
        screen.say(Lane::A, Style::Plain, "one ").unwrap();
        screen.say(Lane::B, Style::Plain, "two\n").unwrap();
        screen.say(Lane::A, Style::Plain, "th").unwrap();
        screen.say(Lane::A, Style::Plain, "ree").unwrap();
        screen.note(Lane::A, Style::Dim, "> ", "four").unwrap();
        assert_eq!(printed(screen), "B │ two\nA │ one three\nA │ > four\n");
    }

    #[test]
    fn one_thread_shows_its_words_as_they_come() {
        let mut screen = Screen::new(Vec::new(), false);
        screen.flow(Flow::Words);
        screen.say(Lane::A, Style::Plain, "one tw").unwrap();
        assert_eq!(String::from_utf8_lossy(&screen.out), "A │ one");
        screen.say(Lane::A, Style::Plain, "o").unwrap();
        screen.line(Style::Plain, "end").unwrap();
        assert_eq!(printed(screen), "A │ one two\nend\n");
    }

    #[test]
    fn long_text_is_wrapped_at_words_and_steers_no_terminal() {
        let mut screen = Screen::new(Vec::new(), false);
        screen.say(Lane::B, Style::Plain, &"abcde ".repeat(13)).unwrap();
        screen.say(Lane::B, Style::Plain, "\x1b[2J\n\nx").unwrap();
        screen.end_lines().unwrap();
        let row = "abcde ".repeat(12);
        assert_eq!(printed(screen), format!("B │ {}\nB │ abcde [2J\nB │\nB │ x\n", row.trim_end()));
    }

    #[test]
    fn colours_are_only_for_those_who_see_them() {
        let mut screen = Screen::new(Vec::new(), true);
        screen.note(Lane::A, Style::Bad, "", "no").unwrap();
        assert_eq!(printed(screen), "\x1b[36mA │\x1b[0m \x1b[31mno\x1b[0m\n");
    }
}
