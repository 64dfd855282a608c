//! The life of a part step by step, and that no part overtakes another.

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp, ErrorKind, IoError, Seq};
use forebay_policy::AdmissionReason;

use crate::client::cut::Cut;
use crate::client::parts::PartState::{self, *};
use crate::client::parts::{Next, Path};
use crate::client::requests::{Answered, Requests, Terms, Way};
use crate::interface::{Class, PartKey, RequestId};
use crate::locks::{BlockRange, Hold, Locks};
use crate::log::AppendOwner;

mod overtaking;

const VOLUME: u64 = 64 * BLOCK_BYTES + 512;

/// What happens to a part, in the order in which the coordinator calls.
#[derive(Clone, Copy, Debug)]
enum Do {
    Start,
    /// The base block is read: the first or the last; well or not.
    BaseRead(bool, bool),
    /// In pieces of so many blocks.
    Append(u32),
    Split,
    PieceDone,
    PieceRefused,
    /// Durably, or not.
    Write(bool),
    /// When so many flushes of the backing had failed.
    Written(u64),
    Flushed(u64),
    Supersede,
    AwaitRetirement,
    Copy(u32),
    Copied(u64),
    CopyRefused,
    Finish(bool),
    Restart,
    /// The backing's queue has given its write back, or not.
    Reissue(bool),
    /// The write that lands apart has ended.
    Landed,
    LoseBypasses,
}

struct Bench {
    requests: Requests,
    locks: Locks,
    key: PartKey,
}

fn error(context: &'static str) -> IoError {
    IoError::new(ErrorKind::Io, context)
}

fn told(answered: Option<Answered>) -> String {
    answered.map_or("nothing".to_owned(), |answered| match answered.error {
        None if answered.bypassed => format!("answered, volatile, {:?}", answered.reason),
        None => format!("answered, {:?}", answered.reason),
        Some(error) => format!("failed: {}", error.context),
    })
}

fn asked(next: Next) -> String {
    match next {
        Next::Nothing => "nothing".to_owned(),
        Next::ReadBase(bases) => {
            let bases = bases.iter().map(|(block, is_first)| match is_first {
                true => format!(" first {}", block.0),
                false => format!(" last {}", block.0),
            });
            format!("read{}", bases.collect::<String>())
        }
        Next::GoOn(path) => format!("go on: {path:?}"),
        Next::Append(appends) => {
            let counts = appends.iter().filter_map(|append| append.extent.map(|e| e.count));
            format!("append {:?}", counts.collect::<Vec<_>>())
        }
        Next::Write(DeviceOp::Write { durable, .. }, class) => format!("write {durable} {class:?}"),
        Next::Write(op, class) => format!("zero {} {class:?}", op.write_bytes()),
        Next::Flush(class) => format!("flush {class:?}"),
        Next::OnBacking { volatile } => format!("on the backing, volatile {volatile}"),
        Next::Answer(answered) => told(Some(answered)),
    }
}

fn way(path: Path) -> Way {
    let reason = match path {
        Path::Log => AdmissionReason::All,
        Path::Bypass => AdmissionReason::NotCritical,
    };
    Way::of(reason, forebay_block::Origin::default(), false)
}

/// A bypass is as durable as was asked for, and on a backing that forgets what it has not made durable it is that in any case (P1).
#[test]
fn what_goes_to_a_backing_that_forgets_is_durable() {
    for forgets in [false, true] {
        let mut requests = Requests::new(VOLUME).in_front_of(forgets);
        let keys = arrive(&mut requests, 1, Cut::zero(0, 4096, true, VOLUME), Path::Bypass);
        assert_eq!(requests.wants_durable(keys[0]), forgets);
    }
}

fn arrive(requests: &mut Requests, id: u64, cut: Cut, path: Path) -> Vec<PartKey> {
    let reason = match path {
        Path::Log => AdmissionReason::All,
        Path::Bypass => AdmissionReason::NotCritical,
    };
    requests.open(RequestId(id), &cut, false, reason);
    let terms = Terms { durable: false, reissuable: true, after: Seq(0) };
    cut.parts.into_iter().map(|part| requests.arrive(RequestId(id), part, way(path), terms)).collect()
}

impl Bench {
    fn of(cut: Cut, path: Path) -> Self {
        let mut requests = Requests::new(VOLUME);
        let keys = arrive(&mut requests, 1, cut, path);
        assert_eq!(keys.len(), 1);
        Self { requests, locks: Locks::default(), key: keys[0] }
    }

    fn state(&self) -> Option<PartState> {
        self.requests.parts.get(&self.key).map(|part| part.state)
    }

    fn happens(&mut self, what: Do) -> String {
        let Self { requests, locks, key } = self;
        let key = *key;
        match what {
            Do::Start => requests.start(key, true, locks).map_or("waits".to_owned(), asked),
            Do::BaseRead(is_first, well) => {
                let result = if well { Ok(Buf::zeroed(4096)) } else { Err(error("base")) };
                asked(requests.base_read(key, is_first, result, locks))
            }
            Do::Append(max) => asked(requests.append(key, max, locks)),
            Do::Split => {
                requests.piece_split(AppendOwner::Part(key));
                "nothing".to_owned()
            }
            Do::PieceDone => told(requests.piece_done(key, locks)),
            Do::PieceRefused => told(requests.piece_refused(key, error("refused"), locks)),
            Do::Write(durable) => asked(requests.write(key, durable)),
            Do::Written(losses) => asked(requests.written(key, losses)),
            Do::Flushed(losses) => format!("covered {}", requests.is_flushing_since(key, losses)),
            Do::Supersede => match requests.supersede(key) {
                Some(append) => format!("append {:?} durable {}", append.owner, append.durable),
                None => "nothing".to_owned(),
            },
            Do::AwaitRetirement => {
                let range = requests.await_retirement(key);
                assert_eq!((range.is_some(), requests.awaiting_retirement()), (true, vec![key]));
                "nothing".to_owned()
            }
            Do::Copy(max) => {
                let (answered, appends) = requests.copy(key, max);
                format!("{}, append {}", told(answered), appends.len())
            }
            Do::Copied(losses) => match requests.copied(key, losses, locks) {
                Some(copied) => format!("copied, untrue {}", copied.is_untrue),
                None => "nothing".to_owned(),
            },
            Do::CopyRefused => {
                requests.copy_refused(key, locks);
                "nothing".to_owned()
            }
            Do::Finish(well) => told(requests.finish(key, (!well).then(|| error("finish")), locks)),
            Do::Restart => {
                requests.restart(key, locks);
                "nothing".to_owned()
            }
            Do::Reissue(withdrawn) => {
                let reissued = requests.reissue(key, withdrawn, locks);
                reissued.map_or("stays".to_owned(), |reissued| format!("{reissued:?}"))
            }
            Do::Landed => {
                let landing = requests.landed(key).unwrap();
                locks.release(landing.range, Hold::Backing);
                told(requests.ends_landed(key))
            }
            Do::LoseBypasses => {
                requests.lose_bypasses(&error("lost"));
                "nothing".to_owned()
            }
        }
    }

    /// What belongs to another state changes nothing.
    fn strays(&mut self) {
        let state = self.state();
        let strays = [
            (Do::BaseRead(true, false), matches!(state, Some(ReadingBase { .. }))),
            (Do::PieceDone, matches!(state, Some(Appending { .. }))),
            (Do::Copied(0), matches!(state, Some(CopyingClean { .. }))),
        ];
        for (stray, belongs) in strays {
            if !belongs {
                assert_eq!((self.happens(stray), self.state()), ("nothing".to_owned(), state), "{stray:?}");
            }
        }
        if state != Some(Landing) {
            assert!(self.requests.ends_landed(self.key).is_none());
        }
    }

    /// Each step asks for this, and leads to this state.
    fn goes(mut self, name: &str, steps: &[(Do, &str, Option<PartState>)]) {
        for (n, (what, asks, state)) in steps.iter().enumerate() {
            self.strays();
            assert_eq!(self.happens(*what), *asks, "{name}, step {n}: {what:?}");
            assert_eq!(self.state(), *state, "{name}, step {n}: {what:?}");
        }
        self.strays();
        let waits = self.state() == Some(Waiting);
        assert!(self.locks.is_empty(), "{name}: who has ended, or waits, holds nothing");
        assert_eq!(self.requests.is_idle(), !waits, "{name}");
        assert_eq!(self.requests.len(), usize::from(waits), "{name}: answered once");
    }
}

fn whole(blocks: u64) -> Cut {
    Cut::write(0, Buf::zeroed((blocks * BLOCK_BYTES) as usize))
}

/// From the middle of block 1 to the middle of block 3.
fn partial() -> Cut {
    Cut::write(BLOCK_BYTES + 512, Buf::zeroed(2 * BLOCK_BYTES as usize))
}

#[test]
fn a_part_goes_through_the_log() {
    let log = |cut| Bench::of(cut, Path::Log);
    log(whole(3)).goes(
        "whole blocks",
        &[
            (Do::Start, "go on: Log", Some(Waiting)),
            (Do::Append(2), "append [2, 1]", Some(Appending { pieces: 2 })),
            (Do::Split, "nothing", Some(Appending { pieces: 3 })),
            (Do::PieceDone, "nothing", Some(Appending { pieces: 2 })),
            (Do::PieceDone, "nothing", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, All", None),
        ],
    );
    log(partial()).goes(
        "blocks in part",
        &[
            (Do::Start, "read first 1 last 3", Some(ReadingBase { outstanding: 2 })),
            (Do::BaseRead(false, true), "nothing", Some(ReadingBase { outstanding: 1 })),
            (Do::BaseRead(true, true), "go on: Log", Some(ReadingBase { outstanding: 0 })),
            (Do::Append(256), "append [3]", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, All", None),
        ],
    );
    log(Cut::write(512, Buf::zeroed(512))).goes(
        "the middle of one block",
        &[
            (Do::Start, "read first 0", Some(ReadingBase { outstanding: 1 })),
            (Do::BaseRead(true, false), "failed: base", None),
        ],
    );
    log(Cut::write(64 * BLOCK_BYTES, Buf::zeroed(512))).goes(
        "the volume's last block, which is no whole one",
        &[
            (Do::Start, "go on: Log", Some(Waiting)),
            (Do::Append(9), "append [1]", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, All", None),
        ],
    );
    log(partial()).goes(
        "a base block cannot be read, and the other can",
        &[
            (Do::Start, "read first 1 last 3", Some(ReadingBase { outstanding: 2 })),
            (Do::BaseRead(true, false), "nothing", Some(ReadingBase { outstanding: 1 })),
            (Do::BaseRead(false, true), "failed: base", None),
        ],
    );
    log(whole(2)).goes(
        "the log refuses a piece",
        &[
            (Do::Start, "go on: Log", Some(Waiting)),
            (Do::Append(1), "append [1, 1]", Some(Appending { pieces: 2 })),
            (Do::PieceRefused, "nothing", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "failed: refused", None),
        ],
    );
    log(whole(2)).goes(
        "the log fails before it has it, and is void later",
        &[
            (Do::Start, "go on: Log", Some(Waiting)),
            (Do::Append(1), "append [1, 1]", Some(Appending { pieces: 2 })),
            (Do::Restart, "nothing", Some(Waiting)),
            (Do::Start, "go on: Bypass", Some(Waiting)),
            (Do::Write(false), "write false Foreground", Some(BypassWriting)),
            (Do::Written(0), "on the backing, volatile true", Some(BypassWriting)),
            (Do::AwaitRetirement, "nothing", Some(AwaitingRetirement)),
            (Do::Finish(true), "answered, volatile, CacheFailed", None),
        ],
    );
}

#[test]
fn a_part_goes_to_the_backing() {
    let bypass = |cut| Bench::of(cut, Path::Bypass);
    bypass(whole(2)).goes(
        "volatile",
        &[
            (Do::Start, "go on: Bypass", Some(Waiting)),
            (Do::Write(false), "write false Background", Some(BypassWriting)),
            (Do::Written(0), "on the backing, volatile true", Some(BypassWriting)),
            (Do::Finish(true), "answered, volatile, NotCritical", None),
        ],
    );
    bypass(whole(2)).goes(
        "a flush fails that it needed",
        &[
            (Do::Start, "go on: Bypass", Some(Waiting)),
            (Do::Write(false), "write false Background", Some(BypassWriting)),
            (Do::Written(0), "on the backing, volatile true", Some(BypassWriting)),
            (Do::LoseBypasses, "nothing", Some(BypassWriting)),
            (Do::Finish(true), "failed: lost", None),
        ],
    );
    bypass(partial()).goes(
        "superseding",
        &[
            (Do::Start, "read first 1 last 3", Some(ReadingBase { outstanding: 2 })),
            (Do::BaseRead(true, true), "nothing", Some(ReadingBase { outstanding: 1 })),
            (Do::BaseRead(false, true), "go on: Bypass", Some(ReadingBase { outstanding: 0 })),
            (Do::Write(true), "write true Background", Some(BypassWriting)),
            (Do::Written(0), "on the backing, volatile false", Some(BypassWriting)),
            (Do::LoseBypasses, "nothing", Some(BypassWriting)),
            (Do::Supersede, "append Supersede(PartKey(1)) durable true", Some(Superseding)),
            (Do::Reissue(false), "stays", Some(Superseding)),
            (Do::Finish(true), "answered, NotCritical", None),
        ],
    );
    let zero = || Cut::zero(0, 3 * BLOCK_BYTES, true, VOLUME);
    bypass(zero()).goes(
        "zeroes that need a flush",
        &[
            (Do::Start, "go on: Bypass", Some(Waiting)),
            (Do::Write(true), "zero 0 Background", Some(BypassWriting)),
            (Do::Written(7), "flush Background", Some(BypassFlushing { losses: 7 })),
            (Do::Reissue(false), "stays", Some(BypassFlushing { losses: 7 })),
            (Do::Flushed(8), "covered false", Some(BypassFlushing { losses: 7 })),
            (Do::Flushed(7), "covered true", Some(BypassFlushing { losses: 7 })),
            (Do::Finish(true), "answered, NotCritical", None),
        ],
    );
    bypass(zero()).goes(
        "zeroes that need none",
        &[
            (Do::Start, "go on: Bypass", Some(Waiting)),
            (Do::Write(false), "zero 0 Background", Some(BypassWriting)),
            (Do::Written(7), "on the backing, volatile true", Some(BypassWriting)),
            (Do::Flushed(7), "covered false", Some(BypassWriting)),
            (Do::Finish(false), "failed: finish", None),
        ],
    );
    for (losses, told) in [(1, "copied, untrue false"), (2, "copied, untrue true")] {
        bypass(whole(3)).goes(
            "a clean copy is kept",
            &[
                (Do::Start, "go on: Bypass", Some(Waiting)),
                (Do::Write(false), "write false Background", Some(BypassWriting)),
                (Do::Written(1), "on the backing, volatile true", Some(BypassWriting)),
                (Do::Copy(2), "answered, volatile, NotCritical, append 2", Some(CopyingClean { pieces: 2 })),
                (Do::Copied(losses), "nothing", Some(CopyingClean { pieces: 1 })),
                (Do::Copied(losses), told, None),
            ],
        );
    }
    bypass(whole(3)).goes(
        "the log fails before the clean copy is there",
        &[
            (Do::Start, "go on: Bypass", Some(Waiting)),
            (Do::Write(true), "write true Background", Some(BypassWriting)),
            (Do::Written(1), "on the backing, volatile false", Some(BypassWriting)),
            (Do::Copy(2), "answered, NotCritical, append 2", Some(CopyingClean { pieces: 2 })),
            (Do::CopyRefused, "nothing", None),
        ],
    );
}

#[test]
fn a_bypass_is_reissued_wherever_it_is() {
    let bypass = |cut| Bench::of(cut, Path::Bypass);
    bypass(whole(1)).goes(
        "waiting",
        &[
            (Do::Reissue(false), "Waits", Some(Waiting)),
            (Do::Start, "go on: Log", Some(Waiting)),
            (Do::Append(9), "append [1]", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, Reissued", None),
        ],
    );
    bypass(partial()).goes(
        "reading its base",
        &[
            (Do::Start, "read first 1 last 3", Some(ReadingBase { outstanding: 2 })),
            (Do::BaseRead(true, true), "nothing", Some(ReadingBase { outstanding: 1 })),
            (Do::Reissue(false), "ReadsBase", Some(ReadingBase { outstanding: 1 })),
            (Do::BaseRead(false, true), "go on: Log", Some(ReadingBase { outstanding: 0 })),
            (Do::Append(9), "append [3]", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, Reissued", None),
        ],
    );
    let writing = [
        (Do::Start, "go on: Bypass", Some(Waiting)),
        (Do::Write(false), "write false Background", Some(BypassWriting)),
    ];
    let goes_on = |name, steps: &[_]| bypass(whole(2)).goes(name, &[&writing, steps].concat());
    goes_on(
        "before the backing has it",
        &[
            (Do::Reissue(true), "GoesOn", Some(BypassWriting)),
            (Do::Append(9), "append [2]", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, Reissued", None),
        ],
    );
    goes_on(
        "and lands after it is answered",
        &[
            (Do::Reissue(false), "Lands", Some(BypassWriting)),
            (Do::Append(9), "append [2]", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, Reissued", None),
            (Do::Landed, "nothing", None),
        ],
    );
    goes_on(
        "and lands before the log has it",
        &[
            (Do::Reissue(false), "Lands", Some(BypassWriting)),
            (Do::Append(9), "append [2]", Some(Appending { pieces: 1 })),
            (Do::Landed, "nothing", Some(Appending { pieces: 1 })),
            (Do::PieceDone, "answered, Reissued", None),
        ],
    );
    goes_on(
        "and is failed by the log: not before it has landed",
        &[
            (Do::Reissue(false), "Lands", Some(BypassWriting)),
            (Do::Append(9), "append [2]", Some(Appending { pieces: 1 })),
            (Do::PieceRefused, "nothing", Some(Landing)),
            (Do::Landed, "failed: refused", None),
        ],
    );
}

#[test]
fn what_lands_keeps_its_blocks_on_the_backing() {
    let mut bench = Bench::of(whole(2), Path::Bypass);
    for what in [Do::Start, Do::Write(false), Do::Reissue(false), Do::Append(9), Do::PieceDone] {
        bench.happens(what);
    }
    let range = BlockRange::new(BlockNo(1), 1);
    assert!(!bench.locks.try_take(range, Hold::Backing), "a destage waits for it (hazard 4)");
    assert!(bench.locks.try_take(range, Hold::LogWrite), "a newer write does not");
    bench.locks.release(range, Hold::LogWrite);
    bench.happens(Do::Landed);
    assert!(bench.locks.try_take(range, Hold::Backing));
}

#[test]
fn a_request_is_answered_with_its_last_part_and_its_first_error() {
    let (mut requests, mut locks) = (Requests::new(VOLUME), Locks::default());
    let cut = Cut::zero(512, 4 * BLOCK_BYTES, true, VOLUME);
    let keys = arrive(&mut requests, 1, cut, Path::Log);
    assert_eq!(keys.len(), 3);
    let ended: Vec<String> = [(2, Some("first")), (0, None), (1, Some("second"))]
        .into_iter()
        .map(|(n, failure)| {
            assert!(requests.start(keys[n], false, &mut locks).is_some());
            told(requests.finish(keys[n], failure.map(error), &mut locks))
        })
        .collect();
    assert_eq!(ended, ["nothing", "nothing", "failed: first"]);
    assert!(requests.is_idle() && locks.is_empty());
}

#[test]
fn bypasses_are_found_by_any_byte_of_their_blocks() {
    let mut requests = Requests::new(VOLUME);
    let part = |requests: &mut Requests, id, offset: u64, path| {
        arrive(requests, id, Cut::write(offset, Buf::zeroed(512)), path)[0]
    };
    let second = part(&mut requests, 1, BLOCK_BYTES + 1024, Path::Bypass);
    let third = part(&mut requests, 2, BLOCK_BYTES, Path::Log);
    let fourth = part(&mut requests, 3, 3 * BLOCK_BYTES, Path::Bypass);
    for (offset, len, expected) in [(0, BLOCK_BYTES, vec![]), (2 * BLOCK_BYTES, BLOCK_BYTES, vec![])] {
        assert_eq!(requests.promote(offset, len), expected, "{offset} + {len}");
        assert!(![second, third, fourth].iter().any(|key| requests.is_awaited(*key)));
    }
    for (offset, len, expected) in [
        (0, BLOCK_BYTES + 1, vec![second]),
        (2 * BLOCK_BYTES - 1, 1, vec![second]),
        (0, u64::MAX, vec![second, fourth]),
    ] {
        assert_eq!(requests.promote(offset, len), expected, "{offset} + {len}");
        assert!(requests.is_awaited(second) && requests.is_awaited(third), "whichever way it goes");
    }
}

/// Who waits for blocks makes nobody count as known to be awaited who is not, and lends what is known.
#[test]
fn waiting_for_blocks_says_of_nobody_that_he_is_awaited() {
    let mut requests = Requests::new(VOLUME);
    let keys = [1, 2, 3].map(|id| {
        let key = arrive(&mut requests, id, whole(1), Path::Log)[0];
        if id == 3 {
            requests.parts.get_mut(&key).unwrap().awaited = true;
        }
        requests.wait(key);
        [1, 2, 3].map(|n| requests.is_awaited(PartKey(n)))
    });
    assert_eq!(keys, [[false; 3], [false; 3], [true; 3]]);
}

/// Each bypass that is to end with a supersede record has room for that promised, from its start on.
#[test]
fn supersede_records_find_the_room_that_bypasses_begin_with() {
    let (mut requests, mut locks) = (Requests::new(VOLUME), Locks::default());
    let keys: Vec<PartKey> = (0..3)
        .map(|n| arrive(&mut requests, n, Cut::write(n * BLOCK_BYTES, Buf::zeroed(4096)), Path::Bypass)[0])
        .collect();
    for key in &keys[..2] {
        assert!(requests.may_supersede(2) && !requests.supersede_waits());
        assert!(requests.start(*key, true, &mut locks).is_some());
        assert!(requests.keeps_log(*key));
    }
    assert!(!requests.may_supersede(2) && requests.supersede_waits(), "who finds none waits");
    assert!(requests.may_supersede(3));
    requests.write(keys[0], false);
    assert!(requests.reissue(keys[0], true, &mut locks).is_some());
    assert!(requests.may_supersede(2), "one that goes to the log needs none");
    requests.round();
    assert!(!requests.supersede_waits(), "all are tried again");
}

#[test]
fn bypasses_that_wait_can_be_refused() {
    let mut requests = Requests::new(VOLUME);
    for (id, path) in [(1, Path::Bypass), (2, Path::Log), (3, Path::Bypass)] {
        let key = arrive(&mut requests, id, whole(1), path)[0];
        requests.wait(key);
    }
    let refused: Vec<u64> = requests.refuse_bypasses(&error("refused")).iter().map(|a| a.id.0).collect();
    assert_eq!((refused, requests.len(), requests.critical_waiting().count()), (vec![1, 3], 1, 1));
    assert!(!requests.critical_bypass_waits());
}
