//! A store that is sick: what is in memory is kept, nothing is answered falsely, and all goes on when it is well again.

use forebay_block::{DeviceOp, ErrorKind, Nanos};
use forebay_objects::model::{Fate, Model};
use forebay_objects::{Access, OpenError, StoreError, Takeover};

use crate::world::{Host, open, small_limits, volume, write};

/// Answers every request with an error for so many milliseconds.
fn suffer(host: &mut Host, now: &mut Nanos, for_ms: u64, error: &StoreError) {
    let end = now.plus_ms(for_ms);
    host.poll(*now);
    while *now < end {
        match host.requests.pop() {
            Some((id, _)) => host.vault.answered(*now, id, Err(error.clone())),
            None => *now = host.vault.deadline().map_or(end, |at| at.max(*now)).min(end),
        }
        host.poll(*now);
    }
}

fn begun() -> (Model, Nanos, Host) {
    let (mut model, mut now) = (volume(1 << 20), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    host.run(&mut now, &mut model, 0, write(0, &[1; 4096], true)).unwrap();
    (model, now, host)
}

#[test]
fn a_store_that_is_away_is_hidden_while_memory_lasts_and_then_waited_for() {
    let (mut model, mut now, mut host) = begun();
    let busy = StoreError::Busy("slow down".to_owned());
    for tag in 1..=20_u64 {
        host.vault.submit(now, tag, write(tag * 4096, &[tag as u8; 4096], false));
    }
    host.vault.submit(now, 50, DeviceOp::Flush);
    let away = now;
    suffer(&mut host, &mut now, 30_000, &busy);
    // 32 KiB are in memory.
    assert_eq!(host.done.len(), 8);
    assert!(host.done.values().all(Result::is_ok));
    assert_eq!(host.vault.counters().away_since, Some(away));
    let ailment = host.vault.trouble().unwrap();
    assert_eq!((ailment.since, ailment.is_refusal), (away, false));
    let what = &ailment.what;
    assert!(what.starts_with("create of log/") && what.ends_with("refused for now: slow down"), "{what}");
    let requests = host.vault.counters().retries;
    assert!((10..100).contains(&requests), "pauses grow: {requests}");
    host.settle(&mut now, &mut model);
    assert_eq!(host.done.len(), 21);
    assert!(host.done.values().all(Result::is_ok));
    assert_eq!((host.vault.trouble(), host.vault.counters().buffered_bytes), (None, 0));
    host.done.clear();
    let whole = host.read_all(&mut now, &mut model);
    assert!((1..=20).all(|tag| whole[tag * 4096] == tag as u8));
}

#[test]
fn what_waits_too_long_fails_and_nothing_that_was_written_is_lost() {
    let (mut model, mut now, mut host) = begun();
    let full = StoreError::Full("the quota is used up".to_owned());
    for tag in 1..=20_u64 {
        host.vault.submit(now, tag, write(tag * 4096, &[tag as u8; 4096], false));
    }
    host.vault.submit(now, 50, DeviceOp::Flush);
    suffer(&mut host, &mut now, 61_000, &full);
    assert_eq!(host.done.len(), 21);
    let fault = host.done[&50].clone().unwrap_err();
    assert_eq!(fault.kind, ErrorKind::NoSpace);
    assert!(fault.what.starts_with("it has waited for the store for 60 s: create of log/"), "{fault}");
    assert_eq!(host.done.values().filter(|result| result.is_ok()).count(), 8);
    host.done.clear();
    // The next flush covers what was answered before.
    host.run(&mut now, &mut model, 51, DeviceOp::Flush).unwrap();
    let mut next = open("next", Takeover::Always, &mut now, &mut model);
    let whole = next.read_all(&mut now, &mut model);
    assert!((1..=8).all(|tag| whole[tag * 4096] == tag as u8));
}

#[test]
fn a_read_fails_after_a_while_and_its_late_answer_counts_for_nothing() {
    let (mut model, mut now, mut host) = begun();
    now = now.plus_ms(5000);
    host.vault.submit(now, 1, DeviceOp::Read { offset: 0, len: 4096 });
    host.poll(now);
    let late = host.requests.pop().unwrap();
    suffer(&mut host, &mut now, 70_000, &StoreError::Unknown("no answer in time".to_owned()));
    assert_eq!(host.done.remove(&1).unwrap().unwrap_err().kind, ErrorKind::Io);
    host.vault.answered(now, late.0, model.take(&late.1, Fate::Done));
    host.settle(&mut now, &mut model);
    assert!(host.done.is_empty());
    assert_eq!(host.read_all(&mut now, &mut model)[0], 1);
}

#[test]
fn an_opening_that_is_refused_for_good_says_by_what() {
    let mut now = Nanos(0);
    let mut host = Host::open("host", Access::Own(Takeover::Never), small_limits(), now);
    let denied = StoreError::Denied("InvalidAccessKeyId".to_owned());
    suffer(&mut host, &mut now, 10, &denied);
    let error = host.refused.unwrap();
    assert_eq!(error.to_string(), "volume: permission denied: InvalidAccessKeyId");
    assert_eq!(error, OpenError::Store { name: "volume".to_owned(), error: denied });
}

#[test]
fn no_more_operations_are_taken_than_the_limits_say() {
    let (mut model, mut now, mut host) = begun();
    let room = host.vault.room();
    assert_eq!(room, small_limits().ops_max);
    for tag in 1..=room as u64 {
        host.vault.submit(now, tag, write(0, &[1; 8192], true));
    }
    assert_eq!(host.vault.room(), 0);
    host.vault.submit(now, 5000, DeviceOp::Flush);
    host.poll(now);
    assert!(host.done.remove(&5000).unwrap().is_err());
    assert!(host.vault.counters().buffered_bytes <= 32 << 10);
    host.settle(&mut now, &mut model);
    assert_eq!(host.done.len(), room);
}

#[test]
fn an_object_that_is_gone_is_an_error_unless_another_owner_has_come() {
    let (mut model, mut now, mut host) = begun();
    let name = "log/0000000000000001/0000000000000001";
    let read = DeviceOp::Read { offset: 0, len: 512 };
    let bytes = model.objects_mut().remove(name).unwrap();
    let fault = host.run(&mut now, &mut model, 1, read.clone()).unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Corrupt);
    assert_eq!(fault.what, format!("{name}: the object is gone from the store"));
    model.objects_mut().insert(name.to_owned(), bytes);
    assert!(host.run(&mut now, &mut model, 2, read.clone()).is_ok());
    open("next", Takeover::Always, &mut now, &mut model);
    model.objects_mut().remove(name);
    let fault = host.run(&mut now, &mut model, 3, read).unwrap_err();
    assert_eq!(
        (fault.kind, fault.what.as_str()),
        (ErrorKind::Fenced, "next has taken the volume over, as owner 2")
    );
    assert_eq!(host.fenced.unwrap().by.unwrap().writer.host, "next");
}
