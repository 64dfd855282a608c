//! The time of a device that a plan wants emulated: a model of `forebay-emulate` decides when its operations complete,
//! in place of random latencies.

use forebay_block::Nanos;
use forebay_emulate::{Model, Operation, Settings};
use forebay_engine::IoId;

/// See the module's documentation.
pub struct Emulated {
    settings: Settings,
    model: Option<Model>,
    /// The earliest instant at which somebody will look.
    armed: Option<Nanos>,
    ended: Vec<(u64, Nanos)>,
}

/// A copy is idle, as a device is when a round begins.
impl Clone for Emulated {
    fn clone(&self) -> Self {
        Self::new(self.settings.clone())
    }
}

impl Emulated {
    /// A device of a certain kind.
    pub fn new(settings: Settings) -> Self {
        Self { settings, model: None, armed: None, ended: Vec::new() }
    }

    /// Prepares for a round: an idle device, whose random numbers `seed` decides.
    pub fn start_round(&mut self, seed: u64, size_bytes: u64) {
        self.model = Model::new(&self.settings.clone().with_seed(seed), size_bytes).ok();
        self.armed = None;
    }

    /// Takes an operation.
    pub fn submit(&mut self, id: IoId, op: Operation, now: Nanos) {
        if let Some(model) = &mut self.model {
            model.submit(id.0, op, now);
        }
    }

    /// When somebody has to look, if that is sooner than what was said before.
    pub fn arm(&mut self) -> Option<Nanos> {
        let next = self.model.as_ref().and_then(Model::next_event)?;
        if self.armed.is_some_and(|armed| armed <= next) {
            return None;
        }
        self.armed = Some(next);
        Some(next)
    }

    /// Somebody looks: the operations that have ended.
    pub fn look(&mut self, now: Nanos) -> Vec<IoId> {
        self.armed = self.armed.filter(|armed| *armed > now);
        if let Some(model) = &mut self.model {
            model.poll(now, &mut self.ended);
        }
        self.ended.drain(..).map(|(id, _)| IoId(id)).collect()
    }
}
