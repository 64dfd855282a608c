//! A consistency group: volumes that share their consistency points, of one daemon or of several. Whoever wants a point leads a
//! round; the daemon of the first member sees to it that there are some (`docs/design/groups.md`).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_control::{Answer, Client, ControlError, FailureKind, GroupState, GroupStep, Request};
use forebay_host::set_of;

use crate::control_path::control_path;
use crate::failure::Failure;
use crate::group_plan::{GroupPlan, MemberPlan};
use crate::patience::Patience;
use crate::served::Served;

/// How often the members are asked whether a point is due.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After a round that failed the next one is not tried at once.
const PAUSE: Duration = Duration::from_millis(500);
/// Who leads a round tries so often: another may be under way.
const ATTEMPTS_MAX: u32 = 4;

enum Member {
    Here(Arc<Served>),
    Elsewhere(String, PathBuf),
}

impl Member {
    fn ask(&self, names: &str, round: u64, run: u64, step: GroupStep) -> Result<GroupState, ControlError> {
        match self {
            Self::Here(served) => Ok(served.common(names, round, run, step)?),
            Self::Elsewhere(volume, socket) => {
                let request =
                    Request::Common { volume: volume.clone(), names: names.to_owned(), round, run, step };
                match Client::connect(socket)?.call(&request, |_| {})? {
                    Answer::Common(state) => Ok(state),
                    _ => Err(ControlError::new(
                        FailureKind::Failed,
                        format!(
                            "the daemon of '{volume}' answered something else; is it of another version?"
                        ),
                    )),
                }
            }
        }
    }
}

/// A consistency group of which this daemon serves a member.
pub struct ConsistencyGroup {
    names: String,
    members: Vec<Member>,
    /// One round at a time.
    leads: Mutex<()>,
    stopping: AtomicBool,
}

impl ConsistencyGroup {
    /// Finds the members.
    ///
    /// # Errors
    /// If there is no default control socket.
    pub fn find(plan: &GroupPlan, here: impl Fn(&str) -> Option<Arc<Served>>) -> Result<Self, Failure> {
        let member = |member: &MemberPlan| match (here(&member.name), &member.socket) {
            (Some(served), _) => Ok(Member::Here(served)),
            (None, Some(socket)) => Ok(Member::Elsewhere(member.name.clone(), socket.clone())),
            (None, None) => Ok(Member::Elsewhere(member.name.clone(), control_path(&member.name)?)),
        };
        Ok(Self {
            names: plan.names.clone(),
            members: plan.members.iter().map(member).collect::<Result<_, Failure>>()?,
            leads: Mutex::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Its name and those of its members.
    pub fn names(&self) -> &str {
        &self.names
    }

    /// This daemon sees to it that points are declared.
    pub fn is_led_here(&self) -> bool {
        matches!(self.members.first(), Some(Member::Here(_)))
    }

    /// No further rounds are begun.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Asks each member that `what` has something for, all at once; what the others have answered before stays.
    fn ask(
        &self,
        round: u64,
        states: &mut [GroupState],
        what: impl Fn(usize, &GroupState) -> Option<GroupStep>,
    ) -> Result<(), ControlError> {
        let asked: Vec<Option<GroupStep>> =
            states.iter().enumerate().map(|(n, state)| what(n, state)).collect();
        let answers: Vec<Option<Result<GroupState, ControlError>>> = thread::scope(|scope| {
            let threads: Vec<_> = self
                .members
                .iter()
                .zip(states.iter().zip(asked))
                .map(|(member, (state, step))| {
                    let run = state.run;
                    step.map(|step| scope.spawn(move || member.ask(&self.names, round, run, step)))
                })
                .collect();
            let broke_off = || ControlError::new(FailureKind::Failed, "a member broke off; the log says why");
            threads
                .into_iter()
                .map(|thread| thread.map(|thread| thread.join().unwrap_or_else(|_| Err(broke_off()))))
                .collect()
        });
        let mut failed = None;
        for (state, answer) in states.iter_mut().zip(answers) {
            match answer {
                Some(Ok(answer)) => *state = answer,
                Some(Err(e)) => failed = failed.or(Some(e)),
                None => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// How the members stand; nothing is begun.
    fn look(&self) -> Result<Vec<GroupState>, ControlError> {
        let mut states = vec![GroupState::default(); self.members.len()];
        self.ask(0, &mut states, |_, _| Some(GroupStep::Begin))?;
        Ok(states)
    }

    /// What an earlier round has left behind is committed if all have it; if one has committed it, all have.
    fn settle(&self, round: u64, states: &mut [GroupState]) -> Result<(), ControlError> {
        let before = states.to_vec();
        let keep = |point: u64| before.iter().all(|s| s.prepared == point || s.decided == point);
        self.ask(round, states, |_, state| {
            let point = state.prepared;
            (point > 0).then(|| GroupStep::Settle { point, keep: keep(point) })
        })
    }

    /// Leads all members to a common point; returns its number.
    fn round(&self, label: &str) -> Result<u64, ControlError> {
        let mut states = self.look()?;
        let round = states.iter().map(|state| state.round).max().unwrap_or_default() + 1;
        self.ask(round, &mut states, |_, _| Some(GroupStep::Begin))?;
        self.settle(round, &mut states)?;
        let held = self.ask(round, &mut states, |_, _| Some(GroupStep::Hold));
        // Those that have cut go on in any case.
        let released = self.ask(round, &mut states, |_, _| Some(GroupStep::Release));
        held.and(released)?;
        let backings = states.iter().map(|state| state.backing_id()).collect::<Option<Vec<_>>>();
        let no_id = || ControlError::new(FailureKind::Failed, "a member does not say which its backing is");
        let set = u128::from_le_bytes(set_of(&backings.ok_or_else(no_id)?));
        self.ask(round, &mut states, |n, _| {
            Some(GroupStep::Prepare { label: label.to_owned(), set: format!("{set:032x}"), member: n as u32 })
        })?;
        self.ask(round, &mut states, |_, _| Some(GroupStep::Settle { point: round, keep: true }))?;
        Ok(round)
    }

    /// A member of this daemon is at no state yet that could be a point.
    fn is_not_yet(&self) -> bool {
        self.members.iter().any(|member| matches!(member, Member::Here(served) if !served.is_consistent()))
    }

    /// Declares a point on all members and waits until all have committed it: for what passes soon a few times, and until `patience` is
    /// over for a member that is not consistent yet. Returns its number.
    ///
    /// # Errors
    /// What a member says.
    pub fn mark(&self, label: &str, patience: Patience) -> Result<u64, ControlError> {
        let _one = self.leads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut attempts = 0;
        loop {
            let not_yet = self.is_not_yet() && !patience.is_over() && !self.stopping.load(Ordering::Relaxed);
            let outcome = self.round(label);
            attempts += u32::from(!not_yet);
            let failed = outcome.as_ref().is_err_and(|e| e.kind == FailureKind::Failed);
            if !failed || attempts >= ATTEMPTS_MAX {
                return outcome;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Sees to it that points are declared, on a thread of its own.
    ///
    /// # Errors
    /// Of the system.
    pub fn lead(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let group = Arc::clone(self);
        thread::Builder::new().name("common points".to_owned()).spawn(move || {
            let mut failing = false;
            while !group.stopping.load(Ordering::Relaxed) {
                let outcome = group.look_and_mark();
                thread::sleep(if outcome.is_ok() { LOOK_EVERY } else { PAUSE });
                let failed = outcome.is_err();
                match outcome {
                    Ok(()) if failing => {
                        tracing::info!(group = group.names, "common points are declared again")
                    }
                    Err(e) if !failing => tracing::warn!(group = group.names, "no common point: {e}"),
                    Ok(()) | Err(_) => {}
                }
                failing = failed;
            }
        })
    }

    fn look_and_mark(&self) -> Result<(), ControlError> {
        if self.look()?.iter().any(|state| state.wanted) {
            let point = self.mark("", Patience::NONE)?;
            tracing::debug!(group = self.names, point, "common point");
        }
        Ok(())
    }
}
