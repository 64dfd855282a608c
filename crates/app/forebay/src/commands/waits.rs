//! `forebay waits`: what critical tasks waited for.

use std::fmt::Write;
use std::path::PathBuf;

use forebay_control::{Answer, Request, WaitRow};

use super::{ask, not_an_answer};
use crate::failure::Outcome;
use crate::output::{print, print_json};
use crate::volume_name;

/// Arguments of `forebay waits`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay waits db\n\n\
Counted while a volume of the daemon is attached and --rules or its admission policy ask who is critical. The waits are those of the critical \
tasks of the machine, whatever device they are for.")]
pub struct Args {
    /// The volume
    #[arg(value_parser = volume_name::parse)]
    name: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// Prints the waits by kind.
pub fn run(args: Args) -> Outcome {
    match ask(&args.name, args.control, &Request::Waits { volume: args.name.clone() }, |_| {})? {
        Answer::Waits(rows) if args.json => print_json(&rows),
        Answer::Waits(rows) => print(&text(&rows)),
        _ => Err(not_an_answer()),
    }
}

fn text(rows: &[WaitRow]) -> String {
    if rows.is_empty() {
        return "no wait of a critical task is known; `forebay status` tells what is missing for that, if anything is\n"
            .to_owned();
    }
    let ms = |us: u64| format!("{:.2}", us as f64 / 1e3);
    let mut text = format!(
        "{:<10} {:>10} {:>12} {:>12} {:>12}\n",
        "waits for", "count", "total ms", "average ms", "max ms"
    );
    for r in rows {
        let (total, average, max) = (ms(r.total_us), ms(r.average_us), ms(r.max_us));
        let _ = writeln!(text, "{:<10} {:>10} {total:>12} {average:>12} {max:>12}", r.kind, r.count);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds() {
        let row =
            WaitRow { kind: "journal".into(), count: 2, total_us: 3000, average_us: 1500, max_us: 2500 };
        let text = text(&[row]);
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["journal", "2", "3.00", "1.50", "2.50"]);
        assert!(super::text(&[]).contains("forebay status"));
    }
}
