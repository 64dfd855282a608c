//! A volume that is only read: it recovers the log as ever, answers reads from it and from the backing, and asks for nothing that
//! would change a device. What the backing lacks stays in the cache, and no mark is left of the run.

use forebay_block::{ErrorKind, IoError, Op, Origin, Reply};

use crate::engine::{Engine, Life};
use crate::interface::{Command, CommonError, Effect, MarkError, RequestId};

impl Engine {
    /// Answers a request that lies within the volume.
    pub(super) fn look_at(&mut self, id: RequestId, op: Op, origin: Origin) {
        match op {
            Op::Read { offset, len } => self.read_request(id, (offset, len), origin),
            Op::Status { offset, len, extents_max } => self.status_request(id, offset, len, extents_max),
            // Nothing was acknowledged that it could have to make durable.
            Op::Flush => {
                self.figures.flushes += 1;
                self.effects.push(Effect::Reply { id, result: Ok(Reply::Done) });
            }
            Op::Write { .. } | Op::Zero { .. } => {
                self.figures.errors += 1;
                let error = IoError::new(ErrorKind::ReadOnly, "write, discard or zero");
                self.effects.push(Effect::Reply { id, result: Err(error) });
            }
        }
    }

    pub(super) fn look_command(&mut self, id: RequestId, command: Command) {
        let result = match command {
            // They are about writes: noted, and without effect.
            Command::Set(settings) => {
                self.follow(settings);
                Ok(())
            }
            Command::SetRanges(_) | Command::SetEndurance(_) => Ok(()),
            Command::Mark { .. } => {
                return self.effects.push(Effect::Marked { id, result: Err(MarkError::ReadOnly) });
            }
            Command::Common { .. } => {
                let result = Err(CommonError::Mark(MarkError::ReadOnly));
                return self.effects.push(Effect::CommonDone { id, result });
            }
            Command::Destage => self.nothing_is_dirty(),
            Command::Stop { destage } => {
                if self.life == Life::Running {
                    self.life = Life::Stopping;
                    self.looking_ends = Some((id, destage));
                    return;
                }
                Err(IoError::new(ErrorKind::Shutdown, "stop"))
            }
        };
        self.effects.push(Effect::CommandDone { id, result });
    }

    /// The last read has ended, and so has the volume.
    pub(super) fn look_step(&mut self) {
        if self.life == Life::Stopping
            && self.ios_under_way() == 0
            && self.reading.has_no_reads()
            && let Some((id, destage)) = self.looking_ends.take()
        {
            self.life = Life::Stopped;
            let result = if destage { self.nothing_is_dirty() } else { Ok(()) };
            self.effects.push(Effect::CommandDone { id, result });
        }
    }

    fn nothing_is_dirty(&self) -> Result<(), IoError> {
        match self.map.segments().dirty() {
            0 => Ok(()),
            _ => Err(IoError::new(ErrorKind::ReadOnly, "destaging")),
        }
    }
}
