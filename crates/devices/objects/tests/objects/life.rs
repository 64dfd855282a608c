//! A volume from its creation on, on a store without faults.

use std::sync::Arc;

use forebay_block::{DeviceOp, ErrorKind, Nanos};
use forebay_objects::model::{Fate, Model};
use forebay_objects::{Access, Command, CommandError, ListError, OpenError, Request, Takeover, named_in};

use crate::world::{Host, open, try_open, volume, write};

#[test]
fn what_was_flushed_is_there_after_a_release_and_nobody_has_to_take_over() {
    let (mut model, mut now) = (volume(1 << 20), Nanos(0));
    let mut first = open("first", Takeover::Never, &mut now, &mut model);
    assert_eq!(first.opened.as_ref().unwrap().epoch, 1);
    first.run(&mut now, &mut model, 1, write(4096, &[7; 8192], false)).unwrap();
    first.run(&mut now, &mut model, 2, write(512, &[8; 512], false)).unwrap();
    first.run(&mut now, &mut model, 3, DeviceOp::Zero { offset: 8192, len: 512, unmap: true }).unwrap();
    first.run(&mut now, &mut model, 4, DeviceOp::Flush).unwrap();
    let whole = first.read_all(&mut now, &mut model);
    assert_eq!((whole[512], whole[1024], whole[4096], whole[8192], whole[8704]), (8, 0, 7, 0, 7));

    let error = try_open("second", Access::Own(Takeover::Never), &mut now, &mut model).unwrap_err();
    let OpenError::InUse(claim) = &error else { panic!("{error:?}") };
    assert_eq!((claim.epoch, claim.writer.host.as_str()), (1, "first"));

    assert_eq!(first.command(&mut now, &mut model, Command::Release), Ok(()));
    let after = first.run(&mut now, &mut model, 5, DeviceOp::Flush).unwrap_err();
    assert_eq!(after.kind, ErrorKind::Shutdown);
    let mut second = open("second", Takeover::Never, &mut now, &mut model);
    let opened = second.opened.clone().unwrap();
    assert_eq!((opened.epoch, opened.taken_from), (2, None));
    assert!(second.read_all(&mut now, &mut model) == whole);
}

#[test]
fn an_idle_volume_makes_no_requests() {
    let (mut model, mut now) = (volume(1 << 20), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    for tag in 0..40 {
        host.run(&mut now, &mut model, tag, write(tag * 4096, &[tag as u8; 4096], true)).unwrap();
    }
    now = now.plus_ms(3_600_000);
    host.poll(now);
    assert!(host.requests.is_empty() && host.vault.deadline().is_none());
    let looks = host.vault.counters().gets;
    let read = DeviceOp::Read { offset: 1 << 19, len: 512 };
    host.run(&mut now, &mut model, 50, read.clone()).unwrap();
    host.run(&mut now, &mut model, 51, read).unwrap();
    assert_eq!(host.vault.counters().gets, looks + 1, "one look is enough for a second");
}

#[test]
fn a_durable_write_at_depth_one_is_one_request() {
    let (mut model, mut now) = (volume(1 << 20), Nanos(0));
    let mut host = Host::open("host", Access::Own(Takeover::Never), Default::default(), now);
    host.settle(&mut now, &mut model);
    let before = host.vault.counters();
    for tag in 0..10 {
        host.run(&mut now, &mut model, tag, write(tag * 4096, &[1; 4096], true)).unwrap();
        host.run(&mut now, &mut model, 100 + tag, DeviceOp::Flush).unwrap();
    }
    let after = host.vault.counters();
    assert_eq!(after.creates - before.creates, 10, "a flush with nothing to do costs nothing");
    assert_eq!((after.gets, after.lists), (before.gets, before.lists));
    assert!(after.bytes_up - before.bytes_up < 10 * 4096 * 21 / 20);
}

#[test]
fn a_prefix_with_something_else_is_no_volume() {
    let mut now = Nanos(0);
    let error = try_open("host", Access::Own(Takeover::Always), &mut now, &mut Model::default()).unwrap_err();
    assert_eq!(error, OpenError::NoVolume);
}

#[test]
fn a_volume_grows_and_stays_grown() {
    let (mut model, mut now) = (volume(1 << 20), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    let behind = write(1 << 20, &[1; 512], true);
    assert_eq!(host.run(&mut now, &mut model, 1, behind.clone()).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(host.command(&mut now, &mut model, Command::Resize(2 << 20)), Ok(()));
    host.run(&mut now, &mut model, 2, behind).unwrap();
    assert!(matches!(
        host.command(&mut now, &mut model, Command::Resize(1 << 20)),
        Err(CommandError::Invalid(_))
    ));
    // Many checkpoints later, too.
    for tag in 10..50 {
        host.run(&mut now, &mut model, tag, write(tag * 512, &[1; 512], true)).unwrap();
    }
    let mut next = open("next", Takeover::Always, &mut now, &mut model);
    assert_eq!(next.opened.clone().unwrap().size_bytes, 2 << 20);
    assert_eq!(next.read_all(&mut now, &mut model)[1 << 20], 1);
}

/// Pages of the model have seven names.
#[test]
fn whoever_has_no_part_in_a_volume_finds_the_names_of_its_checkpoints() {
    let (mut model, mut now) = (volume(256 << 10), Nanos(0));
    let list = |model: &mut Model| named_in(|request| model.take(request, Fate::Done));
    assert_eq!(list(&mut model), Ok(vec![]));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    let mut names: Vec<String> = (0..64).map(|n| format!("of.{n}")).collect();
    for (tag, name) in names.iter().enumerate() {
        host.run(&mut now, &mut model, tag as u64, write(4096, &[tag as u8; 4096], true)).unwrap();
        assert_eq!(host.command(&mut now, &mut model, Command::Name(name.clone())), Ok(()));
    }
    for (command, error) in [
        (Command::Name("more".to_owned()), CommandError::TooManyNames),
        (Command::Name("of/7".to_owned()), CommandError::BadName),
        (Command::Name("of.7".to_owned()), CommandError::NameTaken),
        (Command::Unname("more".to_owned()), CommandError::NoSuchName),
    ] {
        assert_eq!(host.command(&mut now, &mut model, command), Err(error));
    }
    assert_eq!(host.command(&mut now, &mut model, Command::Unname("of.7".to_owned())), Ok(()));
    assert_eq!(host.command(&mut now, &mut model, Command::Name("more".to_owned())), Ok(()));
    names.retain(|name| name != "of.7");
    names.push("more".to_owned());
    names.sort_unstable();
    let found = list(&mut model).unwrap();
    assert_eq!(found.iter().map(|kept| kept.name.clone()).collect::<Vec<_>>(), names);
    assert!(found.iter().all(|kept| kept.at.epoch == 1));
    let (object, bytes) = model.objects_mut().iter_mut().find(|(name, _)| name.contains("of.9")).unwrap();
    let object = object.clone();
    Arc::make_mut(bytes)[70] ^= 1;
    let damaged = list(&mut model).unwrap_err().to_string();
    assert!(damaged.starts_with(&object) && damaged.contains("checksum"), "{damaged}");
    model.objects_mut().clear();
    assert_eq!(list(&mut model), Err(ListError::NoVolume));
}

/// Readers find it until then, and nothing of it goes before.
#[test]
fn a_name_is_given_up_when_readers_cannot_find_it_any_more() {
    let (mut model, mut now) = (volume(256 << 10), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    host.run(&mut now, &mut model, 1, write(0, &[1; 4096], true)).unwrap();
    assert_eq!(host.command(&mut now, &mut model, Command::Name("then".to_owned())), Ok(()));
    host.vault.command(now, 7, Command::Unname("then".to_owned()));
    while !host.carried.contains_key(&7) {
        host.poll(now);
        let is_there = model.objects().keys().any(|name| name.starts_with("checkpoint/"));
        assert!(!host.carried.contains_key(&7) || !is_there, "it can still be opened");
        let Some((id, request)) = host.requests.pop() else { continue };
        let answer = model.take(&request, Fate::Done);
        host.vault.answered(now, id, answer);
        host.poll(now);
    }
    assert!(!model.objects().keys().any(|name| name.starts_with("checkpoint/")));
    let reader = try_open("reader", Access::Checkpoint("then".to_owned()), &mut now, &mut model);
    assert_eq!(reader.err(), Some(OpenError::NoCheckpoint("then".to_owned())));
}

/// Whoever takes over meanwhile does not find the note, and needs what has the name.
#[test]
fn nothing_of_a_name_goes_before_it_is_durable_that_it_is_given_up() {
    let mut takeovers = 0;
    // The name is given up at different moments of a checkpoint, which may wait for a commit mark.
    for (durable, answers) in [true, false].into_iter().flat_map(|durable| (0..12).map(move |n| (durable, n)))
    {
        let (mut model, mut now) = (volume(256 << 10), Nanos(0));
        let mut host = open("host", Takeover::Never, &mut now, &mut model);
        host.run(&mut now, &mut model, 1, write(0, &[1; 4096], true)).unwrap();
        assert_eq!(host.command(&mut now, &mut model, Command::Name("then".to_owned())), Ok(()));
        for tag in 2..8_u64 {
            host.vault.submit(now, tag, write(tag * 8192, &[2; 8192], durable));
        }
        host.poll(now);
        for _ in 0..answers.min(host.requests.len()) {
            host.answer(now, &mut model, 0, Fate::Done);
        }
        host.vault.command(now, 100, Command::Unname("then".to_owned()));
        host.poll(now);
        while !host.requests.is_empty() {
            // What the log says comes last.
            let is_log = |request: &Request| request.name().starts_with("log/");
            let which = host.requests.iter().position(|(_, request)| !is_log(request)).unwrap_or(0);
            host.answer(now, &mut model, which, Fate::Done);
            let (mut later, mut then) = (model.clone(), now);
            let mut next = open("next", Takeover::Always, &mut then, &mut later);
            takeovers += usize::from(!next.vault.named().is_empty());
            next.run(&mut then, &mut later, 1, write(0, &[3; 512], true)).unwrap();
        }
        assert_eq!(host.carried.remove(&100), Some(Ok(())));
    }
    assert!(takeovers > 20, "{takeovers}");
}

/// A checkpoint that is due waits for a commit mark, and the command for the checkpoint.
#[test]
fn names_are_given_and_given_up_whoever_flushes() {
    let (mut model, mut now) = (volume(256 << 10), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    for (round, command) in [Command::Name, Command::Unname].into_iter().enumerate() {
        for tag in 0..6_u64 {
            host.run(&mut now, &mut model, tag, write(tag * 8192, &[round as u8; 8192], false)).unwrap();
        }
        assert_eq!(host.command(&mut now, &mut model, command("then".to_owned())), Ok(()));
    }
}

#[test]
fn a_named_checkpoint_stays_as_it_is_while_the_writer_goes_on() {
    let (mut model, mut now) = (volume(256 << 10), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    for tag in 0..60_u64 {
        host.run(&mut now, &mut model, tag, write(tag % 16 * 4096, &[tag as u8; 4096], true)).unwrap();
    }
    let then = host.read_all(&mut now, &mut model);
    assert_eq!(host.command(&mut now, &mut model, Command::Name("then".to_owned())), Ok(()));
    let again = host.command(&mut now, &mut model, Command::Name("then".to_owned()));
    assert_eq!(again, Err(CommandError::NameTaken));
    let mut reader = try_open("reader", Access::Checkpoint("then".to_owned()), &mut now, &mut model).unwrap();
    for tag in 100..300_u64 {
        host.run(&mut now, &mut model, tag, write(tag % 16 * 4096, &[tag as u8; 4096], true)).unwrap();
    }
    assert!(reader.read_all(&mut now, &mut model) == then);
    assert_eq!(
        reader.run(&mut now, &mut model, 1, write(0, &[0; 512], true)).unwrap_err().kind,
        ErrorKind::ReadOnly
    );

    // The next owner keeps it, too.
    let mut next = open("next", Takeover::Always, &mut now, &mut model);
    assert_eq!(next.vault.named().len(), 1);
    for tag in 0..100_u64 {
        next.run(&mut now, &mut model, tag, write(tag % 16 * 4096, &[tag as u8; 4096], true)).unwrap();
    }
    let mut reader = try_open("reader", Access::Checkpoint("then".to_owned()), &mut now, &mut model).unwrap();
    assert!(reader.read_all(&mut now, &mut model) == then);

    let held = model.objects().len();
    assert_eq!(next.command(&mut now, &mut model, Command::Unname("then".to_owned())), Ok(()));
    for tag in 100..200_u64 {
        next.run(&mut now, &mut model, tag, write(tag % 16 * 4096, &[tag as u8; 4096], true)).unwrap();
    }
    assert!(model.objects().len() < held, "what it kept is gone");
    let gone = try_open("reader", Access::Checkpoint("then".to_owned()), &mut now, &mut model).unwrap_err();
    assert_eq!(gone, OpenError::NoCheckpoint("then".to_owned()));
}

#[test]
fn what_is_overwritten_is_collected_and_what_is_kept_is_bounded() {
    let (mut model, mut now) = (volume(256 << 10), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    let mut random = 1_u64;
    for tag in 0..3000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) % 64 * 4096;
        host.run(&mut now, &mut model, tag, write(at, &[tag as u8; 4096], tag % 3 == 0)).unwrap();
    }
    host.run(&mut now, &mut model, 9000, DeviceOp::Flush).unwrap();
    let counters = host.vault.counters();
    let stored: usize =
        model.objects().iter().filter(|(n, _)| n.starts_with("log/")).map(|(_, b)| b.len()).sum();
    assert_eq!(counters.stored_bytes, stored as u64);
    assert_eq!(counters.live_bytes, 256 << 10);
    assert!(stored < 3 * (256 << 10), "{counters:?}");
    assert!(counters.bytes_moved > 0 && counters.log_objects < 30, "{counters:?}");
    let whole = host.read_all(&mut now, &mut model);
    let mut next = open("next", Takeover::Always, &mut now, &mut model);
    assert!(next.read_all(&mut now, &mut model) == whole);
}
