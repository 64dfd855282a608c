//! Any one object that is missing is told, or nothing is lost with it.

use std::sync::Arc;

use forebay_block::{DeviceOp, Nanos};
use forebay_objects::model::Model;
use forebay_objects::{Access, Command, OpenError, Takeover};

use crate::client::{Client, World};
use crate::oracle::{Content, Oracle, content_of};
use crate::world::{Host, open, small_limits, try_open, volume, write};

fn log_name(epoch: u64, seq: u64) -> String {
    format!("log/{epoch:016x}/{seq:016x}")
}

/// What is in the volume, or why that is not told.
fn look(model: &Model, access: Access, now: Nanos) -> Result<Content, String> {
    let (mut model, mut now) = (model.clone(), now);
    let mut host = Host::open("looker", access, small_limits(), now);
    host.settle(&mut now, &mut model);
    if let Some(error) = host.refused.take() {
        let is_plain =
            matches!(&error, OpenError::Corrupt { .. } | OpenError::NoVolume | OpenError::InUse(_));
        assert!(is_plain, "{error}");
        return Err(error.to_string());
    }
    let len = host.opened.as_ref().unwrap().size_bytes as usize;
    let read = host.run(&mut now, &mut model, 0, DeviceOp::Read { offset: 0, len });
    read.map(|data| content_of(&data.unwrap())).map_err(|fault| fault.to_string())
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Whether another object of the log says that this one existed: see the table of the header's bytes.
fn has_witness(model: &Model, lost: &str) -> bool {
    let (epoch, seq) = {
        let (epoch, seq) = lost["log/".len()..].split_once('/').unwrap();
        (u64::from_str_radix(epoch, 16).unwrap(), u64::from_str_radix(seq, 16).unwrap())
    };
    let mut logs = model.objects().iter().filter(|(name, _)| name.starts_with("log/") && *name != lost);
    logs.any(|(_, bytes)| {
        let (kind, at) = (bytes[14], (number(bytes, 48), number(bytes, 56)));
        let is_later = at.0 == epoch && at.1 > seq && (kind == 4 || number(bytes, 120) > seq);
        let is_first = kind == 3 && at.0 > epoch && at.1 == 0;
        is_later || (is_first && number(bytes, 96) == epoch && number(bytes, 104) > seq)
    })
}

/// Lives of owners; each ends at any instant, or is released. How often a loss was refused, was borne, and could not be noticed.
fn lives(seed: u64) -> [u64; 3] {
    let mut world = World::new(seed);
    let mut client = Client::new(&world, "0", Takeover::Never, true, Oracle::default());
    client.open(&mut world);
    let mut counts = [0; 3];
    for life in 1..=3_u64 {
        for _ in 0..world.random.below(200) {
            if world.random.once_in(2) {
                client.submit(&mut world);
            }
            if world.random.once_in(60) {
                client.name(&mut world);
            }
            if !world.random.once_in(3) {
                client.turn(&mut world);
            }
        }
        let is_released = world.random.once_in(2);
        if is_released {
            client.release(&mut world);
        }
        let expected = look(&world.model, Access::Latest, world.now).unwrap();
        client
            .oracle
            .judge(&expected, true)
            .unwrap_or_else(|what| panic!("seed {seed}, life {life}: {what}"));
        for name in world.model.objects().keys() {
            let mut model = world.model.clone();
            model.objects_mut().remove(name);
            for access in [Access::Latest, Access::Own(Takeover::Always)] {
                let which = format!("seed {seed}, life {life}, {name}, {access:?}, released: {is_released}");
                match look(&model, access, world.now) {
                    Err(_) => counts[0] += 1,
                    Ok(found) if found == expected || client.oracle.judge(&found, true).is_ok() => {
                        counts[1] += 1;
                    }
                    Ok(_) => {
                        assert!(!is_released && name.starts_with("log/"), "not noticed: {which}");
                        assert!(!has_witness(&model, name), "not noticed: {which}");
                        counts[2] += 1;
                    }
                }
            }
        }
        let oracle = client.die(&mut world);
        client = Client::new(&world, &life.to_string(), Takeover::Always, true, oracle);
        client.open(&mut world);
        assert_eq!(client.host.refused, None, "seed {seed}, life {life}");
        let found = client.read_all(&mut world);
        client.oracle.judge(&found, true).unwrap_or_else(|what| panic!("seed {seed}, life {life}: {what}"));
        client.oracle.begin_with(found);
    }
    counts
}

#[test]
fn one_object_that_is_missing_is_told_or_nothing_is_lost() {
    let mut counts = [0; 3];
    for seed in 0..60 {
        for (sum, count) in counts.iter_mut().zip(lives(seed)) {
            *sum += count;
        }
    }
    let [refused, borne, unnoticed] = counts;
    println!("{refused} refused, {borne} borne, {unnoticed} not noticed");
    assert!(refused > 500 && borne > 500 && unnoticed < 500, "{counts:?}");
}

/// A released volume, and what is in it.
fn released() -> (Model, Nanos) {
    let (mut model, mut now) = (volume(64 << 10), Nanos(0));
    let mut host = open("first", Takeover::Never, &mut now, &mut model);
    host.run(&mut now, &mut model, 0, write(0, &[1; 4096], true)).unwrap();
    host.run(&mut now, &mut model, 1, write(60 << 10, &[9; 512], false)).unwrap();
    host.command(&mut now, &mut model, Command::Release).unwrap();
    (model, now)
}

#[test]
fn a_volume_that_lacks_an_object_of_its_log_is_as_it_was_when_the_object_is_back() {
    let (model, mut now) = released();
    // The first of the owner, a durable write, what the release has made durable, and the release.
    let log = |name: &&String| name.starts_with("log/");
    assert_eq!(model.objects().keys().filter(log).count(), 4);
    for seq in 0..3 {
        let (mut damaged, name) = (model.clone(), log_name(1, seq));
        let object = damaged.objects_mut().remove(&name).unwrap();
        let before = damaged.objects().clone();
        for access in [
            Access::Latest,
            Access::Own(Takeover::Never),
            Access::Own(Takeover::Always),
            Access::Own(Takeover::From([0; 16])),
        ] {
            let error = try_open("second", access.clone(), &mut now, &mut damaged).err().unwrap();
            let what = format!("it is missing, and {} shows that it was there", log_name(1, 3));
            assert_eq!(error, OpenError::Corrupt { name: name.clone(), what }, "{access:?}");
            assert!(*damaged.objects() == before, "nothing is claimed, fenced or deleted");
        }
        damaged.objects_mut().insert(name, object);
        let mut host = open("third", Takeover::Never, &mut now, &mut damaged);
        let found = host.read_all(&mut now, &mut damaged);
        assert!(found[0] == 1 && found[60 << 10] == 9);
    }
    // The release alone: it has no data, and its owner counts as one that may be at work.
    let mut damaged = model.clone();
    damaged.objects_mut().remove(&log_name(1, 3)).unwrap();
    let error = try_open("second", Access::Own(Takeover::Never), &mut now, &mut damaged).err().unwrap();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    assert_eq!(look(&damaged, Access::Latest, now), look(&model, Access::Latest, now));
}

/// What a later owner has made says that the earlier one's objects were there, and who that owner is.
#[test]
fn fences_first_objects_and_claims_are_missed() {
    let (mut model, mut now) = released();
    let second = open("second", Takeover::Never, &mut now, &mut model);
    drop(second);
    let claim = "epoch/0000000000000002".to_owned();
    let cases: [(&[String], &str); 4] = [
        // All that a crash of the second leaves but its claim, and one object of the first behind which only the fence is left.
        (&[log_name(2, 0), log_name(1, 3)], &log_name(1, 3)),
        // Without the fence, the second's first object says how many of the first's count.
        (&[log_name(1, 3), log_name(1, 4)], &log_name(1, 3)),
        (std::slice::from_ref(&claim), &claim),
        (&[claim.clone(), log_name(1, 4)], &claim),
    ];
    for (lost, told) in cases {
        let mut damaged = model.clone();
        for name in lost {
            damaged.objects_mut().remove(name).unwrap();
        }
        let before = damaged.objects().clone();
        for access in [Access::Latest, Access::Own(Takeover::Always)] {
            match try_open("third", access.clone(), &mut now, &mut damaged) {
                Err(OpenError::Corrupt { name, what }) => {
                    assert!(name == told && what.contains("is missing"), "{lost:?}: {name}: {what}");
                }
                Err(error) => panic!("{lost:?}, {access:?}: {error}"),
                Ok(_) => panic!("{lost:?}, {access:?}: it is not noticed"),
            }
            assert!(*damaged.objects() == before, "nothing is claimed, fenced or deleted");
        }
    }
}

#[test]
fn a_part_of_the_newest_checkpoint_is_missed() {
    let (mut model, mut now) = (volume(64 << 10), Nanos(0));
    let mut host = open("first", Takeover::Never, &mut now, &mut model);
    for tag in 0..40_u64 {
        host.run(&mut now, &mut model, tag, write(tag % 8 * 8192, &[tag as u8 + 1; 4096], true)).unwrap();
    }
    let parts: Vec<String> =
        model.objects().keys().filter(|name| name.starts_with("part/")).cloned().collect();
    assert!(!parts.is_empty());
    for part in parts {
        let mut damaged = model.clone();
        let object: Arc<Vec<u8>> = damaged.objects_mut().remove(&part).unwrap();
        let error = try_open("reader", Access::Latest, &mut now, &mut damaged).err().unwrap();
        assert!(matches!(&error, OpenError::Corrupt { name, .. } if *name == part), "{error}");
        damaged.objects_mut().insert(part, object);
        assert!(try_open("reader", Access::Latest, &mut now, &mut damaged).is_ok());
    }
}
