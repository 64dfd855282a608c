//! Handing the script's requests and commands to the engine.

use forebay_block::{BufMut, Op, Origin, STATUS_EXTENTS_MAX};
use forebay_engine::{Command, Event, RequestId};
use forebay_policy::{GroupEnds, Order};

use super::{Asked, Life, Ordered, Pending, SECTOR_BYTES};
use crate::plan::Action;
use crate::points;
use crate::stamp;
use crate::subject::Subject;
use crate::violation::Interrupt;

impl<S: Subject> Life<'_, S> {
    /// Hands a request or command of the script to the engine. [`Action::Drain`] is for the script's driver.
    ///
    /// # Errors
    /// The crash.
    pub fn issue(&mut self, action: Action) -> Result<(), Interrupt> {
        self.count_step()?;
        let id = self.new_id();
        self.note(&[5, id.0], || (format!("issue  {:>4} {action}", id.0), sectors_of(&action)));
        match action {
            Action::Drain => Ok(()),
            Action::Promote { offset, len } => {
                self.world.stats.promotions += 1;
                self.engine.handle(Event::Promote { offset, len }, self.now);
                Ok(())
            }
            Action::Set(settings) => {
                self.settings = settings;
                self.queue.exchanged();
                self.world.consistency.points.follow(&settings);
                if settings.order == Order::Barrier {
                    self.order = Order::Barrier;
                }
                self.order(id, Ordered::Set(settings.order), Command::Set(settings));
                Ok(())
            }
            Action::Mark => {
                let issued = self.world.oracle.issue_flush().time();
                let label = points::label(self.world.consistency.points.mark(issued));
                let shared = self.settings.group_ends == GroupEnds::Common;
                let ordered = Ordered::Mark { label: label.clone(), in_groups: self.keeps_groups(), shared };
                self.order(id, ordered, Command::Mark { label });
                Ok(())
            }
            Action::Fence { role, told } => self.fence(role, told),
            Action::Round(round) => {
                self.begin_round(round);
                Ok(())
            }
            Action::Destage => {
                let floors = self.world.oracle.floors(0, self.world.shape.volume_bytes / SECTOR_BYTES);
                let ticket = self.world.oracle.issue_flush();
                self.order(id, Ordered::Destage { floors, ticket }, Command::Destage);
                Ok(())
            }
            request => {
                self.request(id, request);
                Ok(())
            }
        }
    }

    /// Asks the engine to stop.
    ///
    /// # Errors
    /// The crash.
    pub fn stop(&mut self, destage: bool) -> Result<(), Interrupt> {
        self.count_step()?;
        let id = self.new_id();
        self.note(&[6, id.0], || (format!("stop   {:>4} destage={destage}", id.0), Vec::new()));
        self.stopping = true;
        self.order(id, Ordered::Stop { destage }, Command::Stop { destage });
        Ok(())
    }

    fn order(&mut self, id: RequestId, ordered: Ordered, command: Command) {
        self.commands.push((id, ordered));
        self.engine.handle(Event::Command { id, command }, self.now);
    }

    fn request(&mut self, id: RequestId, action: Action) {
        let mut origin = issuer(id);
        let oracle = &mut self.world.oracle;
        let durable_mode = self.settings.durability == forebay_policy::Durability::Write;
        let (op, asked, offset, len) = match action {
            Action::Read { offset, len } => {
                (Op::Read { offset, len: len as usize }, Asked::Read(oracle.issue_read()), offset, len)
            }
            Action::Status { offset, len } => {
                let op = Op::Status { offset, len, extents_max: STATUS_EXTENTS_MAX };
                (op, Asked::Status(oracle.issue_read()), offset, len)
            }
            Action::Write { offset, len, fua, sync, criticality } => {
                (origin.sync, origin.criticality) = (sync, criticality);
                let first = offset / SECTOR_BYTES;
                let no = oracle.issue_write(first, len / SECTOR_BYTES, false, fua || durable_mode);
                let mut data = BufMut::zeroed(len as usize);
                stamp::fill(&mut data, first, no);
                self.world.stats.bytes_written += len;
                (Op::Write { offset, data: data.freeze(), fua }, Asked::Write(no), offset, len)
            }
            Action::Zero { offset, len, fua, unmap, criticality } => {
                origin.criticality = criticality;
                let (first, count) = (offset / SECTOR_BYTES, len / SECTOR_BYTES);
                let no = oracle.issue_write(first, count, true, fua || durable_mode);
                (Op::Zero { offset, len, unmap, fua }, Asked::Write(no), offset, len)
            }
            _ => (Op::Flush, Asked::Flush(oracle.issue_flush()), 0, 0),
        };
        if let Action::Write { fua, .. } | Action::Zero { fua, .. } = action {
            let zero = matches!(action, Action::Zero { .. });
            let now = self.world.oracle.now();
            self.world.consistency.issue(now, offset / SECTOR_BYTES, len / SECTOR_BYTES, zero, fua);
        }
        self.world.stats.requests += 1;
        self.pending.push(Pending {
            id,
            asked,
            first: offset / SECTOR_BYTES,
            count: len / SECTOR_BYTES,
            settings: self.settings,
            errors: self.errors(),
            after_stop: self.stopping,
            issued: self.world.oracle.now(),
        });
        self.engine.handle(Event::Request { id, op, origin }, self.now);
    }
}

/// One of a few tasks, each of another I/O priority; on that nothing depends but the order in which operations start.
fn issuer(id: RequestId) -> Origin {
    const CLASSES: [u16; 4] = [0, 1 << 13, 2 << 13 | 7, 3 << 13];
    let task = id.0 % CLASSES.len() as u64;
    Origin { pid: 1 + task as u32, ioprio: CLASSES[task as usize], ..Origin::default() }
}

fn sectors_of(action: &Action) -> Vec<(u64, u64)> {
    match action {
        Action::Read { offset, len }
        | Action::Write { offset, len, .. }
        | Action::Zero { offset, len, .. }
        | Action::Promote { offset, len }
        | Action::Status { offset, len } => vec![(offset / SECTOR_BYTES, len / SECTOR_BYTES)],
        _ => Vec::new(),
    }
}
