use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use forebay_block::{Buf, Content, Criticality, ErrorKind, IoError, Reply};
use forebay_replay::request_log::{Kind, entries};
use tempfile::TempDir;

use super::*;

/// A volume that answers when it is told to.
#[derive(Default)]
struct Slow {
    asked: Mutex<Vec<(Op, Origin, Completion)>>,
    gate: Arc<Gate>,
}

impl Slow {
    fn answer(&self, result: &Result<Reply, IoError>) {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.into_iter().for_each(|(_, _, done)| done(result.clone()));
    }
}

fn info() -> VolumeInfo {
    VolumeInfo {
        name: "db".into(),
        size_bytes: 1 << 30,
        read_only: false,
        request_bytes_max: 32 << 20,
        logical_block: 512,
    }
}

impl BlockService for Slow {
    fn info(&self) -> VolumeInfo {
        info()
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        self.asked.lock().unwrap().push((op, origin, done));
    }

    fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}

fn write(fua: bool) -> Op {
    Op::Write { offset: 4096, data: Buf::zeroed(512), fua }
}

fn events(path: &Path) -> Vec<Event> {
    let entries = entries(&fs::read_to_string(path).unwrap()).unwrap();
    entries.into_iter().map(|entry| entry.event).collect()
}

#[test]
fn every_kind_of_request_is_recorded_with_its_origin_and_its_answer() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("requests");
    let recorder = RequestRecorder::create(&path, &info()).unwrap();
    let volume = RecordedVolume::new(Arc::new(Slow::default()), Arc::clone(&recorder));
    let origin = Origin {
        sync: true,
        content: Content::Log,
        criticality: Criticality::Inherited,
        ioprio: 16388,
        pid: 211,
        lane: 3,
    };
    let ops = [
        Op::Read { offset: 512, len: 1024 },
        write(false),
        write(true),
        Op::Flush,
        Op::Zero { offset: 0, len: 1 << 30, unmap: true, fua: false },
        Op::Status { offset: 0, len: 4096, extents_max: 1 },
    ];
    let (answers, answered) = mpsc::channel();
    for op in ops.clone() {
        let answers = answers.clone();
        volume.submit(op, origin, Box::new(move |result| answers.send(result.is_ok()).unwrap()));
    }
    recorder.promoted(4096, 512);
    let inside: Vec<Origin> =
        volume.inner.asked.lock().unwrap().iter().map(|(_, origin, _)| *origin).collect();
    assert_eq!(inside, [origin; 6], "the volume sees them as they came");
    volume.inner.answer(&Ok(Reply::Done));
    volume.submit(Op::Flush, Origin::default(), Box::new(|_| ()));
    volume.inner.answer(&Err(IoError::new(ErrorKind::ReadOnly, "test")));
    recorder.finish();
    assert_eq!(answered.try_iter().collect::<Vec<_>>(), [true; 6]);

    let events = events(&path);
    assert!(
        matches!(&events[0], Event::Begin { volume_bytes, name, .. } if *volume_bytes == 1 << 30 && name == "db")
    );
    let request = |(number, op)| Event::Request { number, request: Request::new(op, origin) };
    let mut wanted: Vec<Event> = (1..).zip(&ops).map(request).collect();
    assert!(
        matches!(&wanted[2], Event::Request { request, .. } if request.kind == Kind::Write { fua: true })
    );
    wanted.push(Event::Promote { offset: 4096, len: 512 });
    wanted.extend((1..=6).map(|number| Event::Answer { number, errno: 0 }));
    wanted.push(Event::Request { number: 7, request: Request::new(&Op::Flush, Origin::default()) });
    wanted.extend([Event::Answer { number: 7, errno: 1 }, Event::End { requests: 7, lost: 0 }]);
    assert_eq!(events[1..], wanted);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = RequestRecorder::create(&path, &info()).err().unwrap();
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists, "a record was overwritten");
}

#[test]
fn what_comes_too_fast_is_counted_in_its_place_and_held_up_by_nothing() {
    const REQUESTS: u64 = 20_000;
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("requests");
    let recorder = RequestRecorder::start(File::create(&path).unwrap(), &path, &info(), 8).unwrap();
    let volume = RecordedVolume::new(Arc::new(Slow::default()), Arc::clone(&recorder));
    let answered = Arc::new(AtomicU64::new(0));
    for _ in 0..REQUESTS {
        let answered = Arc::clone(&answered);
        volume.submit(
            write(false),
            Origin::default(),
            Box::new(move |_| {
                answered.fetch_add(1, Ordering::Relaxed);
            }),
        );
        volume.inner.answer(&Ok(Reply::Done));
    }
    recorder.finish();
    assert_eq!(answered.load(Ordering::Relaxed), REQUESTS);
    let events = events(&path);
    let requests = events.iter().filter(|event| matches!(event, Event::Request { .. })).count() as u64;
    let answers = events.iter().filter(|event| matches!(event, Event::Answer { .. })).count() as u64;
    let lost: u64 = events.iter().map(|event| if let Event::Lost(count) = event { *count } else { 0 }).sum();
    assert!(requests > 0 && lost > 0, "{requests} {lost}");
    assert_eq!(events.last(), Some(&Event::End { requests, lost }));
    // Each request has a line or is lost, and each that has one has an answer or lost that.
    assert_eq!(REQUESTS - requests + requests - answers, lost);
}

#[test]
fn a_record_that_cannot_be_written_ends_and_the_volume_goes_on() {
    let (mut reading, writing) = io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(writing));
    let recorder = RequestRecorder::start(file, Path::new("pipe"), &info(), 8).unwrap();
    let mut begun = vec![0; VERSION.len()];
    reading.read_exact(&mut begun).unwrap();
    drop(reading);
    let volume = RecordedVolume::new(Arc::new(Slow::default()), Arc::clone(&recorder));
    let answered = Arc::new(AtomicU64::new(0));
    for _ in 0..100 {
        let answered = Arc::clone(&answered);
        volume.submit(
            write(false),
            Origin::default(),
            Box::new(move |_| {
                answered.fetch_add(1, Ordering::Relaxed);
            }),
        );
        volume.inner.answer(&Ok(Reply::Done));
    }
    recorder.finish();
    assert_eq!(answered.load(Ordering::Relaxed), 100);
}
