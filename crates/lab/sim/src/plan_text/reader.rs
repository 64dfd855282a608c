//! Reading a plan from its text.

use std::str::FromStr;

use forebay_block::Criticality;
use forebay_emulate::{BadSetting, Settings as Emulation};
use forebay_policy::{BACKING_SLOTS_MAX, Settings};

use super::{CRITICALITIES, PlanError, ROLES, SURVIVALS, TITLE};
use crate::fault::{Damage, Effect, Fault, OpKind, Rot};
use crate::plan::{Action, Between, CommonRound, CrashKind, End, HostCrash, Plan, Round, Shape, Step};

/// The words of a line that are not yet consumed.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "the line is too short".to_owned())
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.word()?;
        word.parse().map_err(|_| format!("'{word}' is not a number that fits"))
    }

    fn one_of<T: Copy>(&mut self, table: &[(T, &'static str)]) -> Result<T, String> {
        let word = self.word()?;
        let known = || table.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        table
            .iter()
            .find(|(_, name)| *name == word)
            .map(|(value, _)| *value)
            .ok_or_else(|| format!("'{word}' is not one of {}", known()))
    }

    fn keyword(&mut self, name: &str) -> Result<(), String> {
        let word = self.word()?;
        if word == name { Ok(()) } else { Err(format!("'{word}' where '{name}' belongs")) }
    }

    /// The rest of the line: flags, each at most once.
    fn flags<const N: usize>(&mut self, names: [&'static str; N]) -> Result<[bool; N], String> {
        let mut set = [false; N];
        for word in self.0.by_ref() {
            let i = names.iter().position(|n| *n == word).ok_or_else(|| format!("'{word}' is unknown"))?;
            set[i] = true;
        }
        Ok(set)
    }

    fn settings(&mut self) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for word in self.0.by_ref() {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is not KEY=VALUE"))?;
            settings.set(key, value).map_err(|e| e.to_string())?;
        }
        Ok(settings)
    }

    fn crash(&mut self) -> Result<CrashKind, String> {
        match self.word()? {
            "kill" => Ok(CrashKind::Kill),
            "cut" => {
                let (cache, backing) = self.one_of(&[
                    ((true, false), "cache"),
                    ((false, true), "backing"),
                    ((true, true), "both"),
                ])?;
                Ok(CrashKind::Cut { cache, backing, survival: self.one_of(&SURVIVALS)? })
            }
            other => Err(format!("'{other}' is not a crash")),
        }
    }

    fn end(&mut self) -> Result<End, String> {
        let stops = [(true, "destage"), (false, "keep")];
        Ok(match self.word()? {
            "after" => End::CrashAfter(self.number()?, self.crash()?),
            "in-start" => End::CrashInStart { write: self.number()?, crash: self.crash()? },
            "last-words" => End::CrashInLastWords {
                destage: self.one_of(&stops)?,
                write: self.number()?,
                crash: self.crash()?,
            },
            "idle" => End::CrashIdle(self.crash()?),
            "settled" => End::CrashSettled(self.crash()?),
            "stop" => End::Stop { destage: self.one_of(&stops)? },
            "in-stop" => End::CrashInStop {
                destage: self.one_of(&stops)?,
                after: self.number()?,
                crash: self.crash()?,
            },
            other => return Err(format!("'{other}' is not an end")),
        })
    }

    fn between(&mut self) -> Result<Between, String> {
        Ok(match self.word()? {
            "older" => Between::Older { role: self.one_of(&ROLES)?, rounds: self.number()? },
            "foreign" => Between::Foreign(self.one_of(&ROLES)?),
            "lose" => Between::Lose {
                wiped: self.one_of(&[(true, "wiped"), (false, "left")])?,
                plain: self.one_of(&[(true, "plain"), (false, "forced")])?,
                crash: self.host_crash()?,
            },
            "release" => Between::Release(self.host_crash()?),
            other => return Err(format!("'{other}' does not happen between lives")),
        })
    }

    /// A crash during a write of the host's, if the line goes on.
    fn host_crash(&mut self) -> Result<Option<HostCrash>, String> {
        match self.0.next() {
            None => Ok(None),
            Some("crash") => Ok(Some(HostCrash { write: self.number()?, kind: self.crash()? })),
            Some(other) => Err(format!("'{other}' where 'crash' belongs")),
        }
    }

    /// Offset and length, whether it is `fua` and what its kind alone may be, and what is known of who waits for it.
    fn write(&mut self, own: &'static str) -> Result<(u64, u64, bool, bool, Criticality), String> {
        let (offset, len) = (self.number()?, self.number()?);
        let [direct, inherited, awaited, capped] = CRITICALITIES.map(|(_, name)| name);
        let [fua, own, is @ ..] = self.flags(["fua", own, direct, inherited, awaited, capped])?;
        let known = CRITICALITIES.iter().zip(is).find(|(_, is)| *is);
        Ok((offset, len, fua, own, known.map_or(Criticality::None, |((c, _), _)| *c)))
    }

    fn action(&mut self, name: &str) -> Result<Action, String> {
        Ok(match name {
            "read" => Action::Read { offset: self.number()?, len: self.number()? },
            "write" => {
                let (offset, len, fua, sync, criticality) = self.write("sync")?;
                Action::Write { offset, len, fua, sync, criticality }
            }
            "zero" => {
                let (offset, len, fua, unmap, criticality) = self.write("unmap")?;
                Action::Zero { offset, len, fua, unmap, criticality }
            }
            "promote" => Action::Promote { offset: self.number()?, len: self.number()? },
            "flush" => Action::Flush,
            "status" => Action::Status { offset: self.number()?, len: self.number()? },
            "set" => Action::Set(self.settings()?),
            "mark" => Action::Mark,
            "round-of-group" => {
                let [steps, pause_us] = [self.number::<u64>()?, self.number()?];
                let steps = u8::try_from(steps).map_err(|e| e.to_string())?;
                let pause_us = u32::try_from(pause_us).map_err(|e| e.to_string())?;
                let [keeps_old, keeps] = self.flags(["keeps-old", "keeps"])?;
                Action::Round(CommonRound { steps, pause_us, keeps_old, keeps })
            }
            "destage" => Action::Destage,
            "drain" => Action::Drain,
            "fence" => {
                let role = self.one_of(&ROLES[1..])?;
                let [told] = self.flags(["told"])?;
                Action::Fence { role, told }
            }
            other => return Err(format!("'{other}' is not an action")),
        })
    }
}

/// Collects lines into a plan.
struct Reader {
    seed: u64,
    shape: Option<Shape>,
    models: [Option<Emulation>; 2],
    rounds: Vec<Round>,
    ended: bool,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = Words(line.split_whitespace());
        let mut first = words.word()?;
        match first {
            "seed" => self.seed = words.number()?,
            "emulate" => {
                let (role, model) = (words.one_of(&ROLES[..2])?, words.word()?);
                let model: Emulation = model.parse().map_err(|e: BadSetting| e.to_string())?;
                self.models[role as usize] = Some(model);
            }
            "volume" => self.shape = Some(Self::shape(&mut words)?),
            "round" => {
                if !self.ended {
                    return Err("the round before has no end".to_owned());
                }
                words.keyword("depth")?;
                let depth = words.number()?;
                words.keyword("schedule")?;
                let schedule = words.number()?;
                let mut backing_depth = BACKING_SLOTS_MAX;
                if words.0.clone().next() == Some("backing") {
                    words.keyword("backing")?;
                    backing_depth = words.number()?;
                }
                if !(1..=BACKING_SLOTS_MAX).contains(&backing_depth) {
                    return Err(format!(
                        "a backing takes from 1 to {BACKING_SLOTS_MAX} operations at a time"
                    ));
                }
                let [verify] = words.flags(["verify"])?;
                self.ended = false;
                self.rounds.push(Round {
                    between: Vec::new(),
                    settings: Settings::default(),
                    depth,
                    backing_depth,
                    schedule,
                    verify,
                    faults: Vec::new(),
                    damages: Vec::new(),
                    steps: Vec::new(),
                    end: End::CrashIdle(CrashKind::Kill),
                });
            }
            _ => {
                let round = self.rounds.last_mut().filter(|_| !self.ended);
                let round = round.ok_or_else(|| format!("'{first}' outside of a round"))?;
                let mut delay_us = 0;
                if let Some(delay) = first.strip_prefix('+') {
                    delay_us = delay.parse().map_err(|_| format!("'{delay}' is not a delay"))?;
                    first = words.word()?;
                }
                match first {
                    "settings" => round.settings = words.settings()?,
                    "between" => round.between.push(words.between()?),
                    "fault" => round.faults.push(Self::fault(&mut words)?),
                    "damage" => round.damages.push(Damage {
                        role: words.one_of(&ROLES)?,
                        rot: words.one_of(&Rot::ALL)?,
                        after: words.number()?,
                        pick: words.number()?,
                    }),
                    "end" => {
                        round.end = words.end()?;
                        self.ended = true;
                    }
                    other => round.steps.push(Step { delay_us, action: words.action(other)? }),
                }
            }
        }
        match words.0.next() {
            Some(extra) => Err(format!("'{extra}' is too much")),
            None => Ok(()),
        }
    }

    fn shape(words: &mut Words<'_>) -> Result<Shape, String> {
        let volume_bytes = words.number()?;
        words.keyword("segment")?;
        let segment_bytes = words.number()?;
        words.keyword("segments")?;
        let segment_count = words.number()?;
        words.keyword("align")?;
        let align = words.number()?;
        let (mut stamped, mut journal_bytes, mut journal_apart) = (false, 0, false);
        let mut commits_in_place = false;
        while let Some(word) = words.0.next() {
            match word {
                "stamped" => stamped = true,
                "journal" => journal_bytes = words.number()?,
                "apart" => journal_apart = true,
                "in-place" => commits_in_place = true,
                other => return Err(format!("'{other}' is neither stamped, journal, apart nor in-place")),
            }
        }
        let shape = Shape {
            volume_bytes,
            segment_bytes,
            segment_count,
            align,
            stamped,
            journal_bytes,
            journal_apart,
            commits_in_place,
        };
        // Stamps have room for 2^24 sectors; the cache is kept in memory.
        let fits = (512..=1 << 32).contains(&volume_bytes)
            && u64::from(segment_bytes) * u64::from(segment_count) <= 1 << 32
            && journal_bytes <= 1 << 32;
        if journal_bytes > 0 && (journal_bytes % 4096 != 0 || journal_bytes < 2 * u64::from(segment_bytes)) {
            return Err("the journal's ring holds at least two segments, and whole blocks".to_owned());
        }
        if commits_in_place && (journal_apart || journal_bytes == 0) {
            return Err(
                "groups are in-place with their commit only where the journal lies on the backing".to_owned()
            );
        }
        if !fits || volume_bytes % 512 != 0 || segment_bytes % 4096 != 0 || segment_bytes == 0 {
            return Err("a volume or cache of this size cannot be simulated".to_owned());
        }
        Ok(shape)
    }

    fn fault(words: &mut Words<'_>) -> Result<Fault, String> {
        let role = words.one_of(&ROLES)?;
        let on = words.one_of(&OpKind::ALL)?;
        let effect = words.one_of(&Effect::ALL)?;
        let first = words.number()?;
        let count = match words.0.next() {
            Some(word) => word.parse().map_err(|_| format!("'{word}' is not a number that fits"))?,
            None => u64::MAX,
        };
        Ok(Fault { role, on, effect, first, count })
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let mut reader =
            Reader { seed: 0, shape: None, models: Default::default(), rounds: Vec::new(), ended: true };
        let mut titled = false;
        let mut last = 0;
        for (i, line) in text.lines().enumerate() {
            last = i + 1;
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if !titled {
                titled = line == TITLE;
                if titled {
                    continue;
                }
                return Err(PlanError { line: last, message: format!("a plan begins with '{TITLE}'") });
            }
            reader.line(line).map_err(|message| PlanError { line: last, message })?;
        }
        let error = |message: &str| PlanError { line: last, message: message.to_owned() };
        let shape = reader.shape.ok_or_else(|| error("there is no 'volume' line"))?;
        if !reader.ended {
            return Err(error("the last round has no end"));
        }
        let [cache_model, backing_model] = reader.models;
        Ok(Self { seed: reader.seed, shape, cache_model, backing_model, rounds: reader.rounds })
    }
}
