//! Vaults on one store, and a clock.

use std::collections::BTreeMap;

use forebay_block::{Buf, DeviceOp, Nanos};
use forebay_objects::model::{Fate, Model};
use forebay_objects::{
    Access, Command, CommandError, CreateParams, Creation, Effect, Fault, Fenced, Limits, OpenError,
    OpenParams, Opened, Request, Takeover, Vault, Writer,
};

pub const VOLUME: [u8; 16] = *b"the test's volum";

/// Small objects, so that few bytes make many, and checkpoints and collection have much to do.
pub fn small_limits() -> Limits {
    Limits {
        object_bytes: 8192,
        flights_max: 3,
        buffered_bytes_max: 32 << 10,
        log_objects_max: 6,
        log_bytes_max: 16 << 10,
        small_objects_max: 3,
        gets_max: 4,
        ..Limits::default()
    }
}

/// A vault and what is known of it.
#[derive(Clone, Debug)]
pub struct Host {
    pub vault: Vault,
    /// Requests that are not answered yet, oldest first.
    pub requests: Vec<(u64, Request)>,
    pub opened: Option<Opened>,
    pub refused: Option<OpenError>,
    pub fenced: Option<Fenced>,
    pub done: BTreeMap<u64, Result<Option<Vec<u8>>, Fault>>,
    pub carried: BTreeMap<u64, Result<(), CommandError>>,
}

impl Host {
    pub fn open(name: &str, access: Access, limits: Limits, now: Nanos) -> Self {
        let mut nonce = [0; 16];
        nonce[..name.len()].copy_from_slice(name.as_bytes());
        let writer = Writer { nonce, host: name.to_owned() };
        let params = OpenParams { writer, access, limits, time_ns: 1_000_000 + now.0 };
        Self {
            vault: Vault::open(params, now),
            requests: Vec::new(),
            opened: None,
            refused: None,
            fenced: None,
            done: BTreeMap::new(),
            carried: BTreeMap::new(),
        }
    }

    /// Takes what the vault has to tell.
    pub fn poll(&mut self, now: Nanos) {
        let mut effects = Vec::new();
        self.vault.poll(now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Request { id, request } => self.requests.push((id, request)),
                Effect::Opened(opened) => self.opened = Some(opened),
                Effect::Refused(error) => self.refused = Some(error),
                Effect::Fenced(fenced) => self.fenced = Some(fenced),
                Effect::Done { tag, result } => {
                    let result = result.map(|buf| buf.map(|buf| buf.to_vec()));
                    assert!(self.done.insert(tag, result).is_none(), "{tag} is answered once");
                }
                Effect::Carried { tag, result } => {
                    assert!(self.carried.insert(tag, result).is_none(), "{tag} is answered once");
                }
            }
        }
    }

    /// Carries out one of the requests.
    pub fn answer(&mut self, now: Nanos, model: &mut Model, which: usize, fate: Fate) {
        let (id, request) = self.requests.remove(which);
        let result = model.take(&request, fate);
        self.vault.answered(now, id, result);
        self.poll(now);
    }

    /// Carries out everything in order until nothing is left to do, passing over pauses.
    pub fn settle(&mut self, now: &mut Nanos, model: &mut Model) {
        for _ in 0..1_000_000 {
            self.poll(*now);
            if self.requests.is_empty() {
                match self.vault.deadline() {
                    Some(at) => now.0 = now.0.max(at.0),
                    None => return,
                }
            } else {
                self.answer(*now, model, 0, Fate::Done);
            }
        }
        panic!("it never ends: {:?}", self.requests);
    }

    /// The same until an operation has ended.
    pub fn run(
        &mut self,
        now: &mut Nanos,
        model: &mut Model,
        tag: u64,
        op: DeviceOp,
    ) -> Result<Option<Vec<u8>>, Fault> {
        self.vault.submit(*now, tag, op);
        self.settle(now, model);
        self.done.remove(&tag).expect("it is answered")
    }

    pub fn command(
        &mut self,
        now: &mut Nanos,
        model: &mut Model,
        command: Command,
    ) -> Result<(), CommandError> {
        self.vault.command(*now, u64::MAX, command);
        self.settle(now, model);
        self.carried.remove(&u64::MAX).expect("it is answered")
    }

    /// All that is in the volume.
    pub fn read_all(&mut self, now: &mut Nanos, model: &mut Model) -> Vec<u8> {
        let size = self.opened.as_ref().expect("it is open").size_bytes;
        let read = DeviceOp::Read { offset: 0, len: size as usize };
        self.run(now, model, u64::MAX - 1, read).expect("it can be read").expect("it has data")
    }
}

pub fn write(offset: u64, data: &[u8], durable: bool) -> DeviceOp {
    DeviceOp::Write { offset, bufs: vec![Buf::copy_of(data)], durable }
}

/// A store with a volume of so many bytes.
pub fn volume(size_bytes: u64) -> Model {
    let mut model = Model::new(7);
    let writer = Writer { nonce: [9; 16], host: "maker".to_owned() };
    let params = CreateParams { volume: VOLUME, size_bytes, writer, time_ns: 5, limits: Limits::default() };
    let mut creation = Creation::new(&params);
    while creation.ended().is_none() {
        let mut effects = Vec::new();
        creation.poll(Nanos(0), &mut effects);
        for effect in effects {
            let Effect::Request { id, request } = effect else { panic!("{effect:?}") };
            creation.answered(Nanos(0), id, model.take(&request, Fate::Done));
        }
    }
    assert_eq!(creation.ended(), Some(&Ok(())));
    model
}

/// A vault that is open, or why it is not.
pub fn try_open(name: &str, access: Access, now: &mut Nanos, model: &mut Model) -> Result<Host, OpenError> {
    let mut host = Host::open(name, access, small_limits(), *now);
    host.settle(now, model);
    match host.refused.take() {
        Some(error) => Err(error),
        None => Ok(host),
    }
}

pub fn open(name: &str, takeover: Takeover, now: &mut Nanos, model: &mut Model) -> Host {
    try_open(name, Access::Own(takeover), now, model).expect("it opens")
}
