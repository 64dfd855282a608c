//! Nothing that was acknowledged is lost, however a volume ends, and nothing wrong is ever read (P1, P2, P3).

use std::time::Duration;

use forebay_block::{Allocation, BlockService};
use forebay_engine::State;
use forebay_host::Ending;
use forebay_policy::{OnFull, Settings, WritePolicy};

use crate::client::Client;
use crate::place::{MIB, Place};
use crate::stamp::{divide, work};

const VOLUME: u64 = 24 * MIB;
const CLIENTS: u64 = 6;

/// Rounds of random work that end in turn by death, by a stop that keeps dirty data, and by one that destages.
fn rounds(place: &Place, settings: Settings, seed: u64) {
    let mut territories = divide(VOLUME, CLIENTS, seed);
    let endings = [Ending::Abandon, Ending::Keep, Ending::Abandon, Ending::Destage, Ending::Abandon];
    for (round, ending) in endings.into_iter().enumerate() {
        let mut config = place.config();
        config.settings = settings;
        let volume = forebay_host::Volume::open(config).unwrap();
        let client = Client(volume.handle());
        for territory in &mut territories {
            assert_eq!(territory.check_all(&client), 0, "round {round}");
        }
        match ending {
            // Dies in the middle of it.
            Ending::Abandon => std::thread::scope(|scope| {
                scope.spawn(|| work(&client, &mut territories, 100_000));
                std::thread::sleep(Duration::from_millis(300));
                volume.end(ending).unwrap();
            }),
            _ => {
                work(&client, &mut territories, 150);
                volume.end(ending).unwrap();
            }
        }
        if ending == Ending::Destage {
            let image = place.content("backing");
            territories.iter_mut().for_each(|t| t.check_image(&image));
        }
    }
    assert!(territories.iter().all(|t| t.bad == 0), "no request failed");
    assert!(territories.iter().all(|t| t.good > 100));
}

#[test]
fn write_back_on_files() {
    let place = Place::formatted(8 * MIB, VOLUME);
    rounds(&place, Settings::default(), 11);
}

#[test]
fn write_through_on_files() {
    let place = Place::formatted(8 * MIB, VOLUME);
    rounds(&place, Settings { write_policy: WritePolicy::WriteThrough, ..Settings::default() }, 12);
}

#[test]
fn bypass_when_full() {
    let place = Place::formatted(4 * MIB, VOLUME);
    rounds(&place, Settings { on_full: OnFull::Bypass, ..Settings::default() }, 13);
}

#[test]
fn write_back_on_pmem() {
    let Some(place) = Place::pmem() else { return };
    place.format(8 * MIB, VOLUME).unwrap();
    rounds(&place, Settings::default(), 14);
}

#[test]
fn settings_change_while_running() {
    let place = Place::formatted(8 * MIB, VOLUME);
    let volume = place.open();
    let client = Client(volume.handle());
    let mut territories = divide(VOLUME, CLIENTS, 15);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&client, &mut territories, 200));
        let mut settings = Settings::default();
        while !worker.is_finished() {
            for (key, value) in [
                ("write-policy", "write-through"),
                ("admission", "sync"),
                ("durability", "flush"),
                ("write-policy", "write-back"),
                ("admission", "all"),
                ("durability", "write"),
            ] {
                settings.set(key, value).unwrap();
                client.0.set(settings).unwrap();
                assert_eq!(client.0.settings(), settings);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    client.0.destage().unwrap();
    assert_eq!(client.0.status().dirty_bytes, 0);
    let image = place.content("backing");
    for territory in &mut territories {
        assert_eq!((territory.check_all(&client), territory.bad), (0, 0));
        territory.check_image(&image);
    }
}

#[test]
fn figures_and_allocation() {
    let place = Place::formatted(8 * MIB, VOLUME);
    let volume = place.open();
    let client = Client(volume.handle());
    assert_eq!(client.0.info().size_bytes, VOLUME);
    assert_eq!(client.0.status().state, Some(State::Healthy));
    client.write(MIB, &vec![1; 1 << 20]).unwrap();
    let status = client.0.status();
    assert_eq!((status.writes, status.bytes_acknowledged), (1, MIB));
    assert!(status.bytes_to_cache > MIB);
    let extents: Vec<_> = client.status(0, VOLUME).iter().map(|e| (e.len, e.allocation)).collect();
    let expected = [(MIB, Allocation::Hole), (MIB, Allocation::Data), (VOLUME - 2 * MIB, Allocation::Hole)];
    assert_eq!(extents, expected, "cached data counts although the backing has a hole there");
    drop(volume);
    let volume = place.open();
    let client = Client(volume.handle());
    assert_eq!(client.read(MIB, 1 << 20).unwrap()[..], vec![1; 1 << 20]);
    assert!(volume.recovery().blocks_dirty <= 256);
}

#[test]
fn clean_copies_are_believed_only_after_a_clean_stop() {
    let place = Place::formatted(8 * MIB, VOLUME);
    let volume = place.open();
    Client(volume.handle()).write(0, &vec![1; 1 << 20]).unwrap();
    volume.end(Ending::Destage).unwrap();
    let volume = place.open();
    assert_eq!((volume.recovery().blocks_dirty, volume.recovery().blocks_clean), (0, 256));
    volume.end(Ending::Abandon).unwrap();
    let volume = place.open();
    assert_eq!((volume.recovery().blocks_dirty, volume.recovery().blocks_clean), (0, 0));
    assert_eq!(Client(volume.handle()).read(0, 1 << 20).unwrap()[..], vec![1; 1 << 20]);
}
