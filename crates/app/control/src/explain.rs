//! Why writes went where they went, and what critical tasks waited for: the answers behind `forebay explain` and `forebay waits`.

use serde::{Deserialize, Serialize};

/// Writes of one task, kind of data, synchrony and reason (ATC'15, tables 1 and 3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainRow {
    /// What the rules call the task, else its name; `client` if it is not known, `other` for what is too much to list.
    pub task: String,
    /// The rule that fits the task: its set, as `--rules` names it, and its number there, as in `postgresql:29`; `null` if none does.
    #[serde(default)]
    pub rule: Option<String>,
    /// Whether the task was critical by its own word.
    #[serde(default)]
    pub hint: bool,
    /// `log` and `database`: those of an application, by the name of the file; `journal` and other `metadata` of the file system; `data`: nothing
    /// more is known.
    pub data: String,
    /// Whether they are synchronous, that is, the kernel or the client says that their issuer waits for them: flagged so, or forced to be durable.
    pub sync: bool,
    /// The reason, as in `writes_by_reason`.
    pub reason: String,
    /// Whether they are in the cache.
    pub cached: bool,
    /// How many.
    pub writes: u64,
    /// Bytes that they carried.
    pub bytes: u64,
}

/// Writes of a task that are in the cache only because a critical task waited for it, or for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedRow {
    /// The task that wrote.
    pub task: String,
    /// What the critical task waited for: `mutex`, `rwsem`, `futex`, `journal`, `writeback`, `buffer`, `slot`, `flush`, `io`, `lwlock`, `condition` or `dirty`.
    pub through: String,
    /// What the critical task is called; `null` if it is not known which it was.
    pub waiter: Option<String>,
    /// The rule that fits that one, as in a row.
    #[serde(default)]
    pub waiter_rule: Option<String>,
    /// `inherited`: its task was waited for when it came; `reissued`: somebody came to wait for it.
    pub reason: String,
    /// How many.
    pub writes: u64,
}

/// The account of a volume, since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// By task, data, synchrony and reason.
    pub rows: Vec<ExplainRow>,
    /// How criticality was inherited.
    pub inherited: Vec<InheritedRow>,
}

impl Explanation {
    /// What was added to the account `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut added = self.clone();
        for row in &mut added.rows {
            let is_same = |o: &&ExplainRow| {
                (&o.task, &o.rule, o.hint) == (&row.task, &row.rule, row.hint)
                    && (&o.data, o.sync, &o.reason) == (&row.data, row.sync, &row.reason)
            };
            let old = before.rows.iter().find(is_same).map_or((0, 0), |o| (o.writes, o.bytes));
            row.writes = row.writes.saturating_sub(old.0);
            row.bytes = row.bytes.saturating_sub(old.1);
        }
        for row in &mut added.inherited {
            let is_same = |o: &&InheritedRow| {
                (&o.task, &o.through, &o.waiter, &o.waiter_rule, &o.reason)
                    == (&row.task, &row.through, &row.waiter, &row.waiter_rule, &row.reason)
            };
            let old = before.inherited.iter().find(is_same).map_or(0, |o| o.writes);
            row.writes = row.writes.saturating_sub(old);
        }
        added.rows.retain(|r| r.writes > 0);
        added.inherited.retain(|r| r.writes > 0);
        added
    }
}

/// Waits of critical tasks of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitRow {
    /// As [`InheritedRow::through`].
    pub kind: String,
    /// How many.
    pub count: u64,
    /// How long in all, in microseconds.
    pub total_us: u64,
    /// How long on average, in microseconds.
    pub average_us: u64,
    /// The longest, in microseconds.
    pub max_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(task: &str, data: &str, sync: bool, reason: &str, writes: u64) -> ExplainRow {
        let [task, data, reason] = [task, data, reason].map(str::to_owned);
        ExplainRow {
            rule: None,
            hint: false,
            task,
            data,
            sync,
            cached: reason != "not-critical",
            reason,
            writes,
            bytes: 4096 * writes,
        }
    }

    fn inherited(task: &str, through: &str, waiter: Option<&str>, reason: &str, writes: u64) -> InheritedRow {
        let [task, through, reason] = [task, through, reason].map(str::to_owned);
        InheritedRow { task, through, waiter: waiter.map(str::to_owned), waiter_rule: None, reason, writes }
    }

    #[test]
    fn what_was_added_is_told_apart_by_all_that_names_a_row() {
        let names = [
            ("a", "log", true, "direct"),
            ("b", "log", true, "direct"),
            ("a", "data", true, "direct"),
            ("a", "log", false, "direct"),
            ("a", "log", true, "not-critical"),
        ];
        let ways = [
            ("a", "mutex", Some("c"), "inherited"),
            ("b", "mutex", Some("c"), "inherited"),
            ("a", "journal", Some("c"), "inherited"),
            ("a", "mutex", None, "inherited"),
            ("a", "mutex", Some("c"), "reissued"),
        ];
        let account = |writes: [u64; 5]| Explanation {
            rows: (0..5).map(|n| row(names[n].0, names[n].1, names[n].2, names[n].3, writes[n])).collect(),
            inherited: (0..5)
                .map(|n| inherited(ways[n].0, ways[n].1, ways[n].2, ways[n].3, writes[n]))
                .collect(),
        };
        let added = |writes: [u64; 5]| {
            let mut added = account(writes);
            added.rows.retain(|row| row.writes > 0);
            added.inherited.retain(|row| row.writes > 0);
            added
        };
        let before = account([1, 20, 300, 4000, 50_000]);
        assert_eq!(account([2, 22, 300, 4004, 50_005]).since(&before), added([1, 2, 0, 4, 5]));
        assert_eq!(before.since(&Explanation::default()), before);
        assert_eq!(before.since(&before), Explanation::default());
    }
}
