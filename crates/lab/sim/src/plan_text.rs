//! The text of a plan: one line for each thing, words separated by blanks, `#` for remarks.

use std::fmt::{self, Write as _};

use forebay_block::Criticality;
use forebay_engine::Role;
use forebay_policy::{
    BACKING_SLOTS_MAX, GroupEnds, JournalCaching, MaxStaleness, Order, SchedulerKind, Settings, WritePolicy,
};
use thiserror::Error;

use crate::fault::{Effect, OpKind, Rot};
use crate::media::Survival;
use crate::plan::{Action, Between, CrashKind, End, HostCrash, Plan};

mod reader;

/// First line of every plan.
pub const TITLE: &str = "forebay-sim plan 1";

/// A plan that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line} of the plan: {message}")]
pub struct PlanError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

fn name_of<T: PartialEq + Copy>(table: &[(T, &'static str)], value: T) -> &'static str {
    table.iter().find(|(v, _)| *v == value).map_or("?", |(_, name)| name)
}

const ROLES: [(Role, &str); 3] =
    [(Role::Cache, "cache"), (Role::Backing, "backing"), (Role::Journal, "journal")];
const SURVIVALS: [(Survival, &str); 5] = [
    (Survival::Nothing, "nothing"),
    (Survival::Everything, "everything"),
    (Survival::Sectors, "sectors"),
    (Survival::Writes, "writes"),
    (Survival::Prefix, "prefix"),
];

fn settings_text(s: &Settings) -> String {
    let order = if s.order == Order::default() { String::new() } else { format!(" order={}", s.order) };
    let groups = match s.write_policy {
        WritePolicy::Journaled => format!(" group-size={} group-age={}ms", s.group_bytes, s.group_age_ms),
        _ => String::new(),
    };
    let ends = match s.group_ends {
        GroupEnds::Anywhere => String::new(),
        ends => format!(" group-ends={ends}"),
    };
    let bound = match s.max_staleness {
        MaxStaleness::None => String::new(),
        bound => format!(" max-staleness={bound}"),
    };
    let scheduler = match s.scheduler {
        SchedulerKind::Rcp => String::new(),
        other => format!(" scheduler={other}"),
    };
    let journals = match s.journal_caching {
        JournalCaching::Keep => String::new(),
        other => format!(" journal-caching={other}"),
    };
    format!(
        "write-policy={}{order}{groups}{ends}{bound} admission={}{journals} on-full={} durability={}{scheduler}",
        s.write_policy, s.admission, s.on_full, s.durability
    )
}

struct Flags<'a>(&'a [(bool, &'static str)]);

impl fmt::Display for Flags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}

/// What is known of who waits for a write, by its name here; nothing, if none is said.
const CRITICALITIES: [(Criticality, &str); 4] = [
    (Criticality::Direct, "critical"),
    (Criticality::Inherited, "inherited"),
    (Criticality::Awaited, "awaited"),
    (Criticality::Capped, "capped"),
];

fn known(criticality: Criticality) -> [(bool, &'static str); 4] {
    CRITICALITIES.map(|(c, name)| (criticality == c, name))
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { offset, len } => write!(f, "read {offset} {len}"),
            Self::Write { offset, len, fua, sync, criticality } => {
                let flags = [(*fua, "fua"), (*sync, "sync")];
                write!(f, "write {offset} {len}{}{}", Flags(&flags), Flags(&known(*criticality)))
            }
            Self::Zero { offset, len, fua, unmap, criticality } => {
                let flags = [(*fua, "fua"), (*unmap, "unmap")];
                write!(f, "zero {offset} {len}{}{}", Flags(&flags), Flags(&known(*criticality)))
            }
            Self::Promote { offset, len } => write!(f, "promote {offset} {len}"),
            Self::Flush => f.write_str("flush"),
            Self::Status { offset, len } => write!(f, "status {offset} {len}"),
            Self::Set(settings) => write!(f, "set {}", settings_text(settings)),
            Self::Mark => f.write_str("mark"),
            Self::Round(r) => {
                let flags = [(r.keeps_old, "keeps-old"), (r.keeps, "keeps")];
                write!(f, "round-of-group {} {}{}", r.steps, r.pause_us, Flags(&flags))
            }
            Self::Destage => f.write_str("destage"),
            Self::Drain => f.write_str("drain"),
            Self::Fence { role, told } => {
                write!(f, "fence {}{}", name_of(&ROLES, *role), Flags(&[(*told, "told")]))
            }
        }
    }
}

impl fmt::Display for CrashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("kill"),
            Self::Cut { cache, backing, survival } => {
                let which = match (cache, backing) {
                    (true, false) => "cache",
                    (false, true) => "backing",
                    _ => "both",
                };
                write!(f, "cut {which} {}", name_of(&SURVIVALS, *survival))
            }
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = |destage: bool| if destage { "destage" } else { "keep" };
        match self {
            Self::CrashAfter(steps, crash) => write!(f, "after {steps} {crash}"),
            Self::CrashInStart { write, crash } => write!(f, "in-start {write} {crash}"),
            Self::CrashInLastWords { destage, write, crash } => {
                write!(f, "last-words {} {write} {crash}", how(*destage))
            }
            Self::CrashIdle(crash) => write!(f, "idle {crash}"),
            Self::CrashSettled(crash) => write!(f, "settled {crash}"),
            Self::Stop { destage } => write!(f, "stop {}", how(*destage)),
            Self::CrashInStop { destage, after, crash } => {
                write!(f, "in-stop {} {after} {crash}", how(*destage))
            }
        }
    }
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crash = |f: &mut fmt::Formatter<'_>, crash: &Option<HostCrash>| match crash {
            Some(HostCrash { write, kind }) => write!(f, " crash {write} {kind}"),
            None => Ok(()),
        };
        match self {
            Self::Older { role, rounds } => write!(f, "older {} {rounds}", name_of(&ROLES, *role)),
            Self::Foreign(role) => write!(f, "foreign {}", name_of(&ROLES, *role)),
            Self::Lose { wiped, plain, crash: c } => {
                let how = name_of(&[(true, "wiped"), (false, "left")], *wiped);
                write!(f, "lose {how} {}", name_of(&[(true, "plain"), (false, "forced")], *plain))?;
                crash(f, c)
            }
            Self::Release(c) => {
                f.write_str("release")?;
                crash(f, c)
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.shape;
        writeln!(f, "{TITLE}\nseed {}", self.seed)?;
        writeln!(
            f,
            "volume {} segment {} segments {} align {}{}{}{}",
            s.volume_bytes,
            s.segment_bytes,
            s.segment_count,
            s.align,
            Flags(&[(s.stamped, "stamped")]),
            if s.journal_bytes > 0 { format!(" journal {}", s.journal_bytes) } else { String::new() },
            Flags(&[(s.journal_apart, "apart"), (s.commits_in_place, "in-place")])
        )?;
        for (role, model) in [(Role::Cache, &self.cache_model), (Role::Backing, &self.backing_model)] {
            if let Some(model) = model {
                writeln!(f, "emulate {} {model}", name_of(&ROLES, role))?;
            }
        }
        for r in &self.rounds {
            let verify = Flags(&[(r.verify, "verify")]);
            let backing = match r.backing_depth {
                BACKING_SLOTS_MAX => String::new(),
                depth => format!(" backing {depth}"),
            };
            writeln!(f, "\nround depth {} schedule {}{backing}{verify}", r.depth, r.schedule)?;
            writeln!(f, "settings {}", settings_text(&r.settings))?;
            for event in &r.between {
                writeln!(f, "between {event}")?;
            }
            for fault in &r.faults {
                let mut count = String::new();
                if fault.count != u64::MAX {
                    write!(count, " {}", fault.count)?;
                }
                let (role, on) = (name_of(&ROLES, fault.role), name_of(&OpKind::ALL, fault.on));
                let effect = name_of(&Effect::ALL, fault.effect);
                writeln!(f, "fault {role} {on} {effect} {}{count}", fault.first)?;
            }
            for d in &r.damages {
                let (role, rot) = (name_of(&ROLES, d.role), name_of(&Rot::ALL, d.rot));
                writeln!(f, "damage {role} {rot} {} {}", d.after, d.pick)?;
            }
            for step in &r.steps {
                if step.delay_us > 0 {
                    write!(f, "+{} ", step.delay_us)?;
                }
                writeln!(f, "{}", step.action)?;
            }
            writeln!(f, "end {}", r.end)?;
        }
        Ok(())
    }
}
