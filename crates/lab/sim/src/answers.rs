//! What is checked when the engine answers: the promises that an answer makes, and whether an error is excused.

use forebay_block::{Allocation, Buf, ErrorKind, IoError, Reply, STATUS_EXTENTS_MAX};
use forebay_engine::{MarkError, RequestId};
use forebay_policy::GroupEnds;
use forebay_policy::{Admission, OnFull, WritePolicy};

use crate::fault::OpKind;
use crate::life::{Asked, Life, Ordered, Pending};
use crate::oracle::Ticket;
use crate::stamp::{SECTOR, WriteNo};
use crate::subject::Subject;
use crate::trace;
use crate::violation::{Interrupt, broken};

const SECTOR_BYTES: u64 = SECTOR as u64;

impl<S: Subject> Life<'_, S> {
    pub(crate) fn reply(&mut self, id: RequestId, result: Result<Reply, IoError>) -> Result<(), Interrupt> {
        let Some(at) = self.pending.iter().position(|p| p.id == id) else {
            return Err(broken("wall", format!("request {} is answered twice or was never made", id.0)));
        };
        let p = self.pending.swap_remove(at);
        self.progress = self.now;
        self.note(&[7, id.0, u64::from(result.is_ok())], || {
            let outcome = match &result {
                Ok(Reply::Data(data)) => format!("[{}]", trace::describe_data(data).0),
                Ok(other) => format!("{other:?}").to_lowercase(),
                Err(e) => e.to_string(),
            };
            (
                format!("answer {:>4} {outcome}", id.0),
                if p.count > 0 { vec![(p.first, p.count)] } else { Vec::new() },
            )
        });
        self.answers_after_fence(result.is_ok())?;
        match (result, &p.asked) {
            (Err(e), _) => self.failed(&p, &e),
            (Ok(Reply::Data(data)), Asked::Read(ticket)) => self.check_read(&p, *ticket, &data),
            (Ok(Reply::Done), Asked::Write(no)) => self.check_written(&p, *no),
            (Ok(Reply::Done), Asked::Flush(ticket)) => {
                self.world.oracle.acknowledge_flush(*ticket);
                self.world.consistency.acknowledge_flush(self.world.oracle.now(), ticket.time());
                Ok(())
            }
            (Ok(Reply::Status(extents)), Asked::Status(ticket)) => {
                let total: u64 = extents.iter().map(|e| e.len).sum();
                // A short answer leads on all the same.
                let asked = p.count * SECTOR_BYTES;
                if total > asked || total == 0 && asked > 0 || extents.len() > STATUS_EXTENTS_MAX {
                    return Err(broken("wall", format!("request {}: the extents cover {total} bytes", id.0)));
                }
                let holes: Vec<bool> = extents
                    .iter()
                    .flat_map(|e| (0..e.len / SECTOR_BYTES).map(|_| e.allocation == Allocation::Hole))
                    .collect();
                self.check_holes(&p, *ticket, &holes)
            }
            (Ok(other), _) => Err(broken("wall", format!("request {} is answered with {other:?}", id.0))),
        }
    }

    fn check_read(&mut self, p: &Pending, ticket: Ticket, data: &Buf) -> Result<(), Interrupt> {
        if data.len() as u64 != p.count * SECTOR_BYTES {
            return Err(broken("wall", format!("request {}: {} bytes were read", p.id.0, data.len())));
        }
        self.world.trace.data(data);
        self.world.stats.sectors_checked += p.count;
        Ok(self.world.oracle.finish_read(ticket, p.first, data)?)
    }

    /// A hole is what the cache knows nothing of: there the backing alone must be right, for it is asked next.
    fn check_holes(&mut self, p: &Pending, ticket: Ticket, holes: &[bool]) -> Result<(), Interrupt> {
        let world = &mut self.world;
        world.oracle.fail_read(ticket);
        for (sector, _) in (p.first..).zip(holes).filter(|(_, hole)| **hole) {
            if world.backing.is_unknown(sector * SECTOR_BYTES, SECTOR) {
                // Who asks next waits until it is known.
                continue;
            }
            world.oracle.reopen_read(ticket);
            let data = world.backing.media.read(sector * SECTOR_BYTES, SECTOR);
            world.oracle.finish_read(ticket, sector, data)?;
        }
        Ok(())
    }

    fn check_written(&mut self, p: &Pending, no: WriteNo) -> Result<(), Interrupt> {
        self.world.oracle.acknowledge(no);
        let durable = self.world.oracle.write(no).is_some_and(|w| w.durable);
        self.world.consistency.acknowledge(self.world.oracle.now(), no, durable);
        self.lag_grows(no);
        if self.reset_unseen && !durable {
            // The answer was on its way already: as if it had come before.
            self.lose_unflushed();
            return Ok(());
        }
        if p.settings.write_policy == WritePolicy::WriteThrough && p.count > 0 {
            let durable = self.world.oracle.write(no).is_some_and(|w| w.durable);
            let floors = vec![self.world.oracle.floor_of(no); p.count as usize];
            self.world.check_alone("P1", &floors, p.first, durable)?;
            self.world.oracle.is_through(no);
        }
        Ok(())
    }

    pub(crate) fn command_done(
        &mut self,
        id: RequestId,
        result: Result<(), IoError>,
    ) -> Result<(), Interrupt> {
        let Some(at) = self.commands.iter().position(|(c, _)| *c == id) else {
            return Err(broken("wall", format!("command {} is answered twice or was never given", id.0)));
        };
        let (_, ordered) = self.commands.swap_remove(at);
        self.progress = self.now;
        self.note(&[8, id.0, u64::from(result.is_ok())], || {
            (format!("done   {:>4} {result:?}", id.0), Vec::new())
        });
        self.answers_after_fence(result.is_ok())?;
        if let Err(e) = &result {
            self.world.stats.errors += 1;
            let excused = match ordered {
                _ if self.world.is_fenced() => true,
                Ordered::Set(_) => false,
                _ => self.has_failed() || self.world.oracle.may_fail(0, u64::MAX, 0) || self.stopping,
            };
            if !excused {
                return Err(broken("P9", format!("command {} failed without a fault: {e}", id.0)));
            }
        }
        match ordered {
            // Of several that are answered at once, the last to be given counts.
            Ordered::Set(order) if order == self.settings.order => self.order = order,
            Ordered::Set(_) => {}
            Ordered::Mark { .. } => {
                return Err(broken("wall", format!("point {} is done, not marked", id.0)));
            }
            Ordered::Destage { floors, ticket } if result.is_ok() => {
                self.world.check_alone("P9", &floors, 0, true)?;
                self.world.oracle.acknowledge_flush(ticket);
                self.world.consistency.settle(ticket.time());
                self.world.consistency.is_complete();
                self.world.destaged_upto = self.world.destaged_upto.max(Some(ticket.time()));
            }
            Ordered::Destage { ticket, .. } => self.flush_failed(ticket),
            Ordered::Stop { destage } => {
                match result.is_ok() {
                    true => self.check_stopped(destage)?,
                    false => {
                        let ticket = self.world.oracle.issue_flush();
                        self.flush_failed(ticket);
                    }
                }
                self.stopped = Some(result);
            }
        }
        Ok(())
    }

    /// A consistency point was answered: the backing is at it then.
    pub(crate) fn marked(&mut self, id: RequestId, result: Result<u64, MarkError>) -> Result<(), Interrupt> {
        let at = self.commands.iter().position(|(c, o)| *c == id && matches!(o, Ordered::Mark { .. }));
        let Some((_, Ordered::Mark { label, in_groups, shared })) =
            at.map(|at| self.commands.swap_remove(at))
        else {
            return Err(broken("wall", format!("point {} is answered twice or was never asked for", id.0)));
        };
        self.progress = self.now;
        self.note(&[13, id.0, u64::from(result.is_ok())], || {
            (format!("marked {:>4} {label}: {result:?}", id.0), Vec::new())
        });
        self.answers_after_fence(result.is_ok())?;
        let excused = match result {
            Ok(number) => return self.world.judge_marked(number, &label),
            Err(MarkError::Policy(_)) => !in_groups || !self.keeps_groups(),
            Err(MarkError::NotConsistent) => true,
            Err(MarkError::Failing) => self.has_failed(),
            Err(MarkError::Stopping) => self.stopping,
            Err(MarkError::Fenced) => self.world.is_fenced(),
            Err(MarkError::TooMany | MarkError::ReadOnly) => false,
            Err(MarkError::Member) => shared || self.settings.group_ends == GroupEnds::Common,
        };
        match (excused, result) {
            (false, Err(e)) => Err(broken("P9", format!("point '{label}' is refused without a reason: {e}"))),
            _ => Ok(()),
        }
    }

    fn check_stopped(&mut self, destage: bool) -> Result<(), Interrupt> {
        let ticket = self.world.oracle.issue_flush();
        self.world.oracle.acknowledge_flush(ticket);
        self.world.consistency.settle(ticket.time());
        if destage {
            self.world.consistency.is_complete();
            let floors = self.world.oracle.floors(0, self.world.shape.volume_bytes / SECTOR_BYTES);
            self.world.check_alone("P1", &floors, 0, true)?;
        }
        Ok(())
    }

    /// Whether any device has reported an error in this life.
    pub(crate) fn has_failed(&self) -> bool {
        let any = |e: &[u64]| e.iter().any(|n| *n > 0);
        any(&self.world.cache.errors) || any(&self.world.backing.errors) || any(&self.world.journal.errors)
    }

    /// A request was answered with an error: is there a fault that excuses it?
    fn failed(&mut self, p: &Pending, error: &IoError) -> Result<(), Interrupt> {
        self.world.stats.errors += 1;
        match p.asked {
            Asked::Read(t) | Asked::Status(t) => self.world.oracle.fail_read(t),
            Asked::Write(no) => self.world.oracle.fail(no),
            Asked::Flush(t) => self.flush_failed(t),
        }
        let excused = match error.kind {
            // A stop gives up writes that wait for room which only destaging would make.
            ErrorKind::Shutdown => p.after_stop || (self.stopping && matches!(p.asked, Asked::Write(_))),
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Corrupt => self.is_excused(p),
            ErrorKind::Fenced => self.world.is_fenced(),
            ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::ReadOnly => false,
        };
        if excused {
            return Ok(());
        }
        let mut interrupt =
            broken("P9", format!("request {} failed, and no fault excuses it: {error}", p.id.0));
        if let Interrupt::Violation(v) = &mut interrupt {
            v.sectors = (p.first..p.first + p.count).take(1).collect();
        }
        Err(interrupt)
    }

    fn flush_failed(&mut self, ticket: Ticket) {
        self.world.oracle.fail_flush(ticket);
        self.world.consistency.fail_flush(ticket.time());
    }

    fn is_excused(&self, p: &Pending) -> bool {
        const BLOCK: u64 = forebay_block::BLOCK_BYTES / SECTOR_BYTES;
        let first = p.first / BLOCK * BLOCK;
        let end = (p.first + p.count).next_multiple_of(BLOCK);
        if self.world.oracle.may_fail(first, end - first, p.issued) {
            return true;
        }
        let errors = self.errors();
        let read = OpKind::Read as usize;
        let any = OpKind::Any as usize;
        let since = |now: &[u64], then: &[u64], kind: usize| now[kind] > then[kind];
        let reads_failed =
            since(&errors.cache, &p.errors.cache, read) || since(&errors.backing, &p.errors.backing, read);
        let cache_sick = errors.cache[any] > 0;
        let hidden = p.settings.write_policy == WritePolicy::WriteBack
            && p.settings.admission == Admission::All
            && p.settings.on_full == OnFull::Wait;
        match p.asked {
            Asked::Read(_) => reads_failed || self.world.may_have_given_up(self.now),
            Asked::Status(_) => false,
            // P9: a write that the cache takes never hears of the backing, but for what a part of a block needs.
            Asked::Write(_) if hidden && !cache_sick => {
                let whole = p.first.is_multiple_of(BLOCK) && (p.first + p.count).is_multiple_of(BLOCK);
                !whole && reads_failed
            }
            Asked::Write(_) | Asked::Flush(_) => self.has_failed(),
        }
    }
}
