//! `forebay explain`: why writes were cached or bypassed.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use forebay_control::{Answer, Explanation, FailureKind, Request};

use super::{ask, not_an_answer};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json, print_while_read};
use crate::volume_name;
use forebay_policy::size;

/// How often `--follow` looks.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Arguments of `forebay explain`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay explain db --follow\n\n\
Counts writes by task, rule, kind of data, synchrony and reason since the daemon started. Tasks are known of a \
volume that is attached as a block device, where --rules or an admission policy ask for them. Other writes are \
those of `client`.\n\n\
A rule is SET:NUMBER, with the set as --rules names it. `hint` means that the task is critical by its own word.")]
pub struct Args {
    /// The volume
    #[arg(value_parser = volume_name::parse)]
    name: String,

    /// Show the writes of each second, until interrupted
    #[arg(long)]
    follow: bool,

    /// Print JSON; with --follow one object a line
    #[arg(long)]
    json: bool,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// Prints the account once, or again and again.
pub fn run(args: Args) -> Outcome {
    let request = Request::Explain { volume: args.name.clone() };
    let look = || match ask(&args.name, args.control.clone(), &request, |_| {})? {
        Answer::Explanation(explanation) => Ok(explanation),
        _ => Err(not_an_answer()),
    };
    let mut before = look()?;
    if !args.follow {
        return if args.json { print_json(&before) } else { print(&text(&before)) };
    }
    loop {
        std::thread::sleep(FOLLOW_EVERY);
        let now = look()?;
        let added = now.since(&before);
        let line = |e| Failure::new(FailureKind::Failed, format!("cannot put the result into JSON: {e}"));
        let shown = match args.json {
            true => serde_json::to_string(&added).map_err(line)? + "\n",
            false => text(&added) + "\n",
        };
        if !print_while_read(&shown)? {
            return Ok(());
        }
        before = now;
    }
}

fn text(explanation: &Explanation) -> String {
    let mut rows: Vec<_> = explanation.rows.iter().collect();
    rows.sort_by_key(|r| (!r.cached, std::cmp::Reverse(r.bytes)));
    let mut text = format!(
        "{:<8} {:<28} {:<16} {:<9} {:<6} {:<14} {:>10} {:>10}\n",
        "where", "task", "rule", "data", "type", "reason", "writes", "bytes"
    );
    for r in rows {
        let place = if r.cached { "cache" } else { "backing" };
        let kind = if r.sync { "sync" } else { "async" };
        let (task, data, reason, bytes) = (&r.task, &r.data, &r.reason, size::show(r.bytes));
        let rule = if r.hint { "hint" } else { r.rule.as_deref().unwrap_or("-") };
        let _ = writeln!(
            text,
            "{place:<8} {task:<28} {rule:<16} {data:<9} {kind:<6} {reason:<14} {:>10} {bytes:>10}",
            r.writes
        );
    }
    for r in &explanation.inherited {
        let how = if r.reason == "reissued" { "reissued of" } else { "inherited by" };
        let rule = r.waiter_rule.as_ref().map(|rule| format!(" ({rule})")).unwrap_or_default();
        let from = r.waiter.as_ref().map(|waiter| format!(" for {waiter}{rule}")).unwrap_or_default();
        let _ = writeln!(text, "{how} {}{from} through {}: {} writes", r.task, r.through, r.writes);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_control::{ExplainRow, InheritedRow};

    fn row(task: &str, writes: u64) -> ExplainRow {
        ExplainRow {
            task: task.into(),
            rule: Some("mine:7".into()),
            hint: false,
            data: "data".into(),
            sync: false,
            reason: "direct".into(),
            cached: true,
            writes,
            bytes: writes * 4096,
        }
    }

    #[test]
    fn following_shows_only_what_is_new() {
        let inherited = |writes| InheritedRow {
            task: "jbd2".into(),
            through: "journal".into(),
            waiter: Some("backend".into()),
            waiter_rule: Some("postgresql:29".into()),
            reason: "inherited".into(),
            writes,
        };
        let account = |rows, writes| Explanation { rows, inherited: vec![inherited(writes)] };
        let sync = |task, writes| ExplainRow { sync: true, ..row(task, writes) };
        let before = account(vec![row("a", 5), sync("a", 9), row("b", 1)], 4);
        let now = account(
            vec![row("a", 7), sync("a", 10), row("b", 1), ExplainRow { hint: true, ..row("b", 2) }],
            7,
        );
        let added = now.since(&before);
        let shown: Vec<_> = added.rows.iter().map(|r| (r.task.as_str(), r.sync, r.writes, r.bytes)).collect();
        assert_eq!(shown, [("a", false, 2, 8192), ("a", true, 1, 4096), ("b", false, 2, 8192)]);
        assert!(text(&added).lines().nth(1).unwrap().starts_with("cache    a "));
        let rules: Vec<_> = text(&added).lines().map(|l| l[38..54].trim().to_owned()).take(4).collect();
        assert_eq!(rules, ["rule", "mine:7", "hint", "mine:7"], "by bytes");
        assert_eq!(
            text(&added).lines().last(),
            Some("inherited by jbd2 for backend (postgresql:29) through journal: 3 writes")
        );
        let unknown =
            InheritedRow { waiter: None, waiter_rule: None, reason: "reissued".into(), ..inherited(1) };
        let account = Explanation { rows: Vec::new(), inherited: vec![unknown] };
        assert_eq!(text(&account).lines().last(), Some("reissued of jbd2 through journal: 1 writes"));
    }
}
