//! Commands that documents show are commands that the binary takes.

use clap::error::ErrorKind;
use forebay_policy::Settings;

use super::nothing;
use super::pages::{Page, What, all};
use crate::changes::Changes;
use crate::cli;

/// Marks of blocks in which commands stand.
const COMMANDS: &[&str] = &["", "sh"];
/// Flags of other programs that documents name alone: of fio, nbdcopy, cargo-fuzz, and `record`.
const FLAGS_OF_OTHERS: &[&str] =
    &["--after", "--bs", "--fsync", "--liar", "--request-size", "--sanitizer", "--sync"];

/// The simple commands of a line of shell, each as its words. Knows quotes, comments, `$(...)`, redirections and what stands
/// between commands; expands nothing.
pub fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words) = (Vec::new(), Vec::new());
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    // Quotes that continue when a substitution ends.
    let mut outer: Vec<Option<char>> = Vec::new();
    let mut redirected = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let ends_command = match (quote, c) {
            (None | Some('"'), '$') if chars.peek() == Some(&'(') => {
                chars.next();
                outer.push(quote.take());
                true
            }
            (Some(q), c) if q == c => {
                quote = None;
                false
            }
            (Some(_), c) => {
                word.get_or_insert_default().push(c);
                false
            }
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
                false
            }
            (None, '#') if word.is_none() => break,
            (None, ')') => {
                quote = outer.pop().flatten();
                true
            }
            (None, ';' | '|' | '&' | '(') => true,
            (None, '>' | '<') => {
                // The number of a descriptor is no word.
                word.take_if(|w| w.chars().all(|c| c.is_ascii_digit()));
                words.extend(word.take());
                redirected = true;
                false
            }
            (None, c) if c.is_whitespace() => {
                if let Some(word) = word.take()
                    && !std::mem::take(&mut redirected)
                {
                    words.push(word);
                }
                false
            }
            (None, c) => {
                word.get_or_insert_default().push(c);
                false
            }
        };
        if ends_command {
            if !std::mem::take(&mut redirected) {
                words.extend(word.take());
            }
            word = None;
            commands.push(std::mem::take(&mut words));
        }
    }
    if !redirected {
        words.extend(word);
    }
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// All simple commands of a page's blocks, with their lines.
pub fn of_blocks(page: &Page) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for (mark, block) in page.blocks() {
        if COMMANDS.contains(&mark) {
            let joined = block.text.replace("\\\n", "  ");
            for (i, line) in joined.lines().enumerate() {
                found.extend(simple_commands(line).into_iter().map(|words| (block.line + 1 + i, words)));
            }
        }
    }
    found
}

/// The arguments, if the words are a command of Forebay's.
fn of_forebay(words: &[String]) -> Option<&[String]> {
    let begin = words.iter().position(|w| !w.contains('='))?;
    let name = words.get(begin)?;
    (name == "forebay" || name.ends_with("/forebay")).then(|| &words[begin..])
}

/// Words in the place of which a reader puts others: `NAME`, `...`.
fn is_placeholder(word: &str) -> bool {
    word == "..." || word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// The name of a flag: `--size` of `--size=4G` and of `--size[=4G]`.
fn flag_of(word: &str) -> &str {
    word.split(['=', '[']).next().unwrap_or_default()
}

/// The command line, to which commands are shown.
struct Line(clap::Command);

impl Line {
    fn new() -> Self {
        let mut cli = cli::command();
        cli.build();
        Self(cli)
    }

    /// Why these words are refused, in a line.
    fn refusal(&self, words: &[String]) -> Option<String> {
        let e = self.0.clone().try_get_matches_from(words).err()?;
        let said = e.to_string();
        let first = said.lines().next().unwrap_or_default().to_owned();
        (!matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)).then_some(first)
    }

    fn is_command(&self, word: &str) -> bool {
        self.0.find_subcommand(word).is_some()
    }

    /// Whether a command has this long flag: the named one, or any.
    fn has_flag(&self, command: Option<&str>, flag: &str) -> bool {
        let long = flag.trim_start_matches("--");
        self.0
            .get_subcommands()
            .filter(|known| command.is_none_or(|name| known.get_name() == name))
            .flat_map(clap::Command::get_arguments)
            .any(|arg| arg.get_long() == Some(long))
    }

    /// What is wrong with words that name a command, or a part of it.
    fn fault_of_mention(&self, words: &[String]) -> Option<String> {
        let (command, rest) = words.split_first()?;
        if !self.is_command(command) {
            let flag = command == "--version" || command == "--help";
            return (!flag && !is_placeholder(command)).then(|| format!("there is no command {command}"));
        }
        rest.iter()
            .take_while(|word| *word != "--")
            .filter(|word| word.starts_with("--"))
            .map(|word| flag_of(word))
            .find(|flag| !self.has_flag(Some(command), flag))
            .map(|flag| format!("forebay {command} has no flag {flag}"))
    }

    fn fault_of_command(&self, words: &[String]) -> Option<String> {
        if words.iter().any(|word| word == "...") {
            self.fault_of_mention(words.get(1..)?)
        } else {
            self.refusal(words)
        }
    }

    fn fault_of_code(&self, code: &str) -> Option<String> {
        let words: Vec<String> = simple_commands(code).into_iter().next()?;
        let first = words.first()?;
        if let Some(words) = of_forebay(&words) {
            self.refusal(words)?;
            return self.fault_of_mention(words.get(1..)?);
        }
        if self.is_command(first) && words.get(1).is_some_and(|word| word.starts_with("--")) {
            return self.fault_of_mention(&words);
        }
        if first.starts_with("--") && first.len() > 2 {
            let flag = flag_of(first);
            let known = self.has_flag(None, flag) || FLAGS_OF_OTHERS.contains(&flag);
            return (!known).then(|| format!("no command has the flag {flag}"));
        }
        let (key, value) = first.split_once('=')?;
        if words.len() == 1 && Changes::keys().any(|known| known == key) && !is_placeholder(value) {
            return Changes::of(Settings::default()).set(key, value).err();
        }
        None
    }

    fn faults(&self, page: &Page) -> Vec<String> {
        let mut found = Vec::new();
        for (line, words) in of_blocks(page) {
            if let Some(why) = of_forebay(&words).and_then(|words| self.fault_of_command(words)) {
                found.push(page.fault(line, &format!("{}: {why}", words.join(" "))));
            }
        }
        for code in page.parts(What::Code) {
            if let Some(why) = self.fault_of_code(&code.text) {
                found.push(page.fault(code.line, &format!("`{}`: {why}", code.text)));
            }
        }
        found
    }
}

#[test]
fn commands_are_those_of_the_binary() {
    let pages = all();
    let commands: usize = pages
        .iter()
        .map(|page| of_blocks(page).iter().filter(|(_, words)| of_forebay(words).is_some()).count())
        .sum();
    assert!(commands > 60, "only {commands} commands were found");
    let line = Line::new();
    nothing(&pages.iter().flat_map(|page| line.faults(page)).collect::<Vec<_>>());
}

#[test]
fn a_command_that_is_none_is_found() {
    let page = Page::of(
        "a.md",
        "`forebay serv` `forebay status --jsn` `set --wait` `--colour` `group-ends=never` `forebay flush`\n\n\
         ```sh\nx=1 && mount \"$(forebay attach db --wait 5s)\" /mnt  # forebay nothing\nforebay set db on-full=never > x &\n```\n",
    );
    let found = Line::new().faults(&page).join("\n");
    for part in [
        "a.md:5: forebay set db on-full=never: error: invalid value",
        "`forebay serv`: there is no command serv",
        "`forebay status --jsn`: forebay status has no flag --jsn",
        "`set --wait`: forebay set has no flag --wait",
        "`--colour`: no command has the flag --colour",
        "`group-ends=never`: ",
    ] {
        assert!(found.contains(part), "{part} is not in:\n{found}");
    }
    assert_eq!(found.lines().count(), 6, "{found}");
}

#[test]
fn a_line_of_shell_is_cut_into_commands() {
    let commands = |line| simple_commands(line).iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(commands("a b && c 'd e'; f # g"), ["a|b", "c|d e", "f"]);
    assert_eq!(commands("x=$(a b) > c"), ["x=", "a|b"]);
    assert_eq!(commands("a \"$(b 'c d')\" e 2>/dev/null || f"), ["a|", "b|c d", "e", "f"]);
    assert_eq!(commands("a >b c <<'END'"), ["a|c"]);
}
