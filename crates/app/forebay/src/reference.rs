//! Holds `docs/reference/` to the code. The parts between the markers are made from it:
//! `UPDATE_DOCS=1 cargo test -p forebay reference` writes them anew.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use forebay_control::{Measure, VolumeStatus};
use forebay_emulate::{Kind, Settings, Unit};
use forebay_policy::{Admission, AdmissionReason};

use crate::cli::Cli;
use crate::documents::COLUMNS_MAX;

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->\n";

/// Compares the part of `file` between the markers with `expected`, or writes it if asked to.
fn hold(file: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).expect("begin marker");
    let (found, tail) = rest.split_once(END).expect("end marker");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{expected}{END}{tail}")).unwrap();
        return;
    }
    assert!(
        found == expected,
        "docs/reference/{file} is not what the code says; run: UPDATE_DOCS=1 cargo test -p forebay reference\n{expected}"
    );
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn spelling(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|n| n.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(" "));
    let takes_value = arg.get_action().takes_values();
    match (arg.get_long(), value) {
        (Some(long), Some(value)) if takes_value && arg.is_require_equals_set() => {
            format!("--{long}[={value}]")
        }
        (Some(long), Some(value)) if takes_value => format!("--{long} {value}"),
        (Some(long), _) => format!("--{long}"),
        (None, value) => value.unwrap_or_else(|| arg.get_id().as_str().to_uppercase()),
    }
}

fn meaning(arg: &Arg) -> String {
    let mut text = arg.get_help().map(|h| one_line(&h.to_string())).unwrap_or_default();
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|v| format!("`{}`", v.get_name())).collect();
    if arg.get_action().takes_values() && !values.is_empty() && !values.contains(&"`true`".to_owned()) {
        let _ = write!(text, ". One of {}", values.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|v| format!("`{}`", v.to_string_lossy())).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(text, ". Default: {}", defaults.join(", "));
    }
    text
}

fn section(command: &Command, text: &mut String) {
    let name = command.get_name();
    let _ = writeln!(text, "## forebay {name}\n\n{}.\n", command.get_about().expect("an about text"));
    let args: Vec<&Arg> = command
        .get_arguments()
        .filter(|a| !a.is_hide_set() && a.get_id() != "help" && a.get_id() != "log")
        .collect();
    if !args.is_empty() {
        let _ = writeln!(text, "| argument | meaning |\n|---|---|");
        for arg in args {
            let _ = writeln!(text, "| `{}` | {} |", spelling(arg), meaning(arg));
        }
        text.push('\n');
    }
    let after = command.get_after_help().expect("an example").to_string();
    let mut paragraphs = after.split("\n\n");
    let examples = paragraphs.next().unwrap_or_default();
    let examples = examples.trim_start_matches("Examples:").trim_start_matches("Example:");
    let examples: Vec<&str> = examples.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let _ = writeln!(text, "```\n{}\n```\n", examples.join("\n"));
    for paragraph in paragraphs {
        let _ = writeln!(text, "{}\n", wrapped(&one_line(paragraph)));
    }
}

/// In lines of at most [`COLUMNS_MAX`] columns. A span of inline code is one word.
fn wrapped(paragraph: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut in_code = false;
    for piece in paragraph.split(' ') {
        match words.last_mut() {
            Some(word) if in_code => *word += &format!(" {piece}"),
            _ => words.push(piece.to_owned()),
        }
        in_code ^= piece.matches('`').count() % 2 == 1;
    }
    let (mut text, mut columns) = (String::new(), 0);
    for word in words {
        let width = word.chars().count();
        if columns == 0 {
            columns = width;
        } else if columns + 1 + width > COLUMNS_MAX {
            text.push('\n');
            columns = width;
        } else {
            text.push(' ');
            columns += 1 + width;
        }
        text.push_str(&word);
    }
    text
}

#[test]
fn cli_md_lists_every_command_and_flag() {
    let mut cli = Cli::command();
    cli.build();
    let mut text = String::from("\n");
    for command in cli.get_subcommands().filter(|c| c.get_name() != "help") {
        section(command, &mut text);
    }
    hold("cli.md", &text);
}

#[test]
fn json_md_lists_every_key() {
    let mut text = String::from("\n| key | meaning |\n|---|---|\n");
    for field in VolumeStatus::FIELDS {
        let _ = writeln!(text, "| `{}` | {} |", field.name, one_line(field.help));
    }
    text.push('\n');
    hold("json.md", &text);
}

#[test]
fn the_guide_lists_every_reason_of_admission() {
    let guide = include_str!("../../../../docs/guide/admission.md");
    for reason in AdmissionReason::ALL {
        let place = if reason.is_cached() { "cache" } else { "backing" };
        let row = format!("| `{reason}` | {place} | {} |\n", reason.describe());
        assert!(guide.contains(&row), "docs/guide/admission.md lacks: {row}");
    }
    for policy in Admission::ALL {
        assert!(guide.contains(&format!("| `{policy}` | ")), "docs/guide/admission.md lacks {policy}");
    }
}

#[test]
fn metrics_md_lists_every_metric() {
    let mut text = String::from("\n| metric | kind | meaning |\n|---|---|---|\n");
    for field in VolumeStatus::FIELDS {
        let named = match field.measure {
            Measure::Gauge(metric) => Some((metric, "gauge")),
            Measure::Counter(metric) | Measure::Counters(metric, _) => Some((metric, "counter")),
            Measure::Histogram(metric, _) => Some((metric, "histogram")),
            Measure::Label | Measure::State | Measure::Detail => None,
        };
        if let Some((metric, kind)) = named {
            let _ = writeln!(text, "| `{metric}` | {kind} | {} |", one_line(field.help));
        }
    }
    text.push('\n');
    hold("metrics.md", &text);
}

#[test]
fn emulate_md_lists_every_parameter() {
    let mut text = String::new();
    for kind in Kind::ALL {
        let _ = writeln!(text, "\n## {}\n\n{}.\n", kind.as_str(), capitalised(kind.describe()));
        let _ = writeln!(text, "| key | default | meaning |\n|---|---|---|");
        for (parameter, value) in Settings::of(kind).parameters() {
            let default = match parameter.unit {
                Unit::BytesPerSecond => format!("{} ({} MB/s)", parameter.show(value), value / 1_000_000),
                _ => parameter.show(value),
            };
            let _ = writeln!(text, "| `{}` | {default} | {} |", parameter.key, one_line(parameter.about));
        }
    }
    text.push('\n');
    hold("emulate.md", &text);
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
