//! Damaged objects are found: nothing that is read is wrong.

use std::sync::Arc;

use forebay_block::{DeviceOp, ErrorKind, Nanos};
use forebay_objects::model::Model;
use forebay_objects::{Access, Command, OpenError, Takeover};

use crate::world::{Host, open, small_limits, volume, write};

const SIZE: usize = 64 << 10;

/// A store with a checkpoint, a log behind it, a fence, and objects that are partly dead.
fn used() -> (Model, Vec<u8>) {
    let (mut model, mut now) = (volume(SIZE as u64), Nanos(0));
    let mut first = open("first", Takeover::Never, &mut now, &mut model);
    for tag in 0..30_u64 {
        let data: Vec<u8> = (0..1536_u64).map(|n| (n * 7 + tag) as u8).collect();
        first.run(&mut now, &mut model, tag, write(tag * 5 % 16 * 3584, &data, tag % 2 == 0)).unwrap();
    }
    first.command(&mut now, &mut model, Command::Name("kept".to_owned())).unwrap();
    let mut second = open("second", Takeover::Always, &mut now, &mut model);
    for tag in 0..3_u64 {
        second.run(&mut now, &mut model, tag, write(tag * 4096, &[tag as u8 + 1; 2048], true)).unwrap();
    }
    let whole = second.read_all(&mut now, &mut model);
    (model, whole)
}

/// Opens the volume and reads it piece by piece. Whether anything was found to be damaged; what is read must be right.
fn is_found(model: &Model, whole: &[u8], access: Access) -> bool {
    let (mut model, mut now) = (model.clone(), Nanos(0));
    let mut host = Host::open("reader", access, small_limits(), now);
    host.settle(&mut now, &mut model);
    match host.refused.take() {
        None => {}
        Some(OpenError::Corrupt { .. }) => return true,
        Some(error) => panic!("{error}"),
    }
    assert_eq!(host.opened.as_ref().unwrap().size_bytes, whole.len() as u64);
    let mut is_found = false;
    for (tag, expected) in whole.chunks(4096).enumerate() {
        let read = DeviceOp::Read { offset: tag as u64 * 4096, len: 4096 };
        match host.run(&mut now, &mut model, tag as u64, read) {
            Ok(data) => assert!(data.unwrap() == expected, "wrong data"),
            Err(fault) => {
                assert_eq!(fault.kind, ErrorKind::Corrupt);
                assert!(fault.what.starts_with("log/"), "{fault}");
                is_found = true;
            }
        }
    }
    is_found
}

#[test]
fn a_flipped_bit_anywhere_is_found_or_was_not_needed() {
    let (model, whole) = used();
    assert!(!is_found(&model, &whole, Access::Latest));
    let (mut found, mut tried) = (0, 0);
    for (name, bytes) in model.objects() {
        // Of another owner's time, or of the named checkpoint: not looked at.
        let is_unread = name.starts_with("checkpoint/");
        for at in (0..bytes.len()).filter(|at| *at < 200 || at % 61 == 0) {
            let mut damaged = model.clone();
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1 << (at % 8);
            damaged.objects_mut().insert(name.clone(), Arc::new(bytes));
            let is_found = is_found(&damaged, &whole, Access::Latest);
            tried += usize::from(!is_unread);
            found += usize::from(is_found);
        }
    }
    assert!(found * 2 > tried, "{found} of {tried}");
}

#[test]
fn an_object_that_was_cut_short_or_exchanged_is_found() {
    let (model, whole) = used();
    let logs: Vec<String> = model.objects().keys().filter(|name| name.starts_with("log/")).cloned().collect();
    let mut found = 0;
    for name in &logs {
        let bytes = &model.objects()[name];
        for len in [0, 1, 100, 128, bytes.len() - 1] {
            let mut damaged = model.clone();
            damaged.objects_mut().insert(name.clone(), Arc::new(bytes[..len].to_vec()));
            found += u32::from(is_found(&damaged, &whole, Access::Latest));
        }
        for other in logs.iter().filter(|other| *other != name) {
            let mut damaged = model.clone();
            damaged.objects_mut().insert(name.clone(), Arc::clone(&model.objects()[other]));
            found += u32::from(is_found(&damaged, &whole, Access::Latest));
        }
    }
    assert!(found > 20, "{found}");
}

/// Collection leaves a damaged object as it is, and goes on with others.
#[test]
fn collection_copies_nothing_that_is_damaged() {
    let (mut model, mut now) = (volume(SIZE as u64), Nanos(0));
    let mut host = open("host", Takeover::Never, &mut now, &mut model);
    host.run(&mut now, &mut model, 0, write(0, &[1; 8192], true)).unwrap();
    let name = "log/0000000000000001/0000000000000001".to_owned();
    let mut bytes = model.objects()[&name].to_vec();
    let last = bytes.len() - 1000;
    bytes[last] ^= 1;
    model.objects_mut().insert(name.clone(), Arc::new(bytes));
    // Of the first object little is left, and it would be copied.
    host.run(&mut now, &mut model, 1, write(0, &[2; 7680], true)).unwrap();
    for tag in 2..200_u64 {
        host.run(&mut now, &mut model, tag, write(8192 + tag * 7 % 60 * 512, &[3; 3072], true)).unwrap();
    }
    assert!(host.vault.counters().bytes_moved > 0);
    assert!(model.objects().contains_key(&name), "what may still be read is kept");
    let read = DeviceOp::Read { offset: 4096, len: 4096 };
    assert_eq!(host.run(&mut now, &mut model, 999, read).unwrap_err().kind, ErrorKind::Corrupt);
}
