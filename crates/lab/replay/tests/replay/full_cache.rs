//! A cache that is full all the time is no slower than none, and no less even: clients who write more than the
//! backing takes are slowed down to what it takes.
//!
//! Each line that is printed compares a volume with a cache and the same store alone, under the same clients, in
//! virtual time.

use forebay_block::Origin;
use forebay_emulate::Settings as Model;
use forebay_policy::Settings;
use forebay_replay::{Cache, Figures, Load, Volume, closed_loop};

/// Stores whose answers are many in 10 ms, and how many writes are measured.
const STORES: [(&str, u64); 3] =
    [("ssd-sata,buffer=4M", 12_000), ("ssd-nvme,buffer=4M", 12_000), ("remote", 3000)];
const DISK: (&str, u64) = ("hdd-10k", 2000);

fn volume(store: &str, cache_bytes: u64) -> (Volume, Volume) {
    let model = |name: &str| name.parse::<Model>().unwrap();
    let plain = Volume { bytes: 1 << 30, backing: model(store), cache: None };
    let cache =
        Cache { bytes: cache_bytes, device: model("nvdram"), align: 4096, settings: Settings::default() };
    (plain.clone(), Volume { cache: Some(cache), ..plain })
}

fn load(depth: u64, requests: u64, cache_bytes: u64) -> Load {
    // The cache is full by then, and so is the store's buffer.
    let warm_up = cache_bytes / 4096 * 3 / 2 + 2000;
    Load { depth, reads_percent: 0, origin: Origin::default(), warm_up, requests, destages: false, seed: 1 }
}

/// What a cache makes of it, in parts of what there is without.
struct Ratios {
    throughput: f64,
    tail: f64,
    evenness: f64,
}

fn compare(store: &str, depth: u64, requests: u64, cache_bytes: u64) -> Ratios {
    let load = load(depth, requests, cache_bytes);
    let (plain, cached) = volume(store, cache_bytes);
    let (without, with) = (closed_loop(&plain, &load).unwrap(), closed_loop(&cached, &load).unwrap());
    let ratio = |of: &dyn Fn(&Figures) -> f64| of(&with) / of(&without);
    let ratios = Ratios {
        throughput: ratio(&|f| f.per_second),
        tail: ratio(&|f| f.within_ns(999) as f64),
        evenness: with.evenness(),
    };
    println!(
        "{store:20} depth {depth:3}: throughput {:.2}, 99% {:.2}, 99.9% {:.2}, longest {:.2}; worst 10 ms {:.2} of the median (without {:.2}); {:.2} bytes to the cache for each",
        ratios.throughput,
        ratio(&|f| f.within_ns(990) as f64),
        ratios.tail,
        ratio(&|f| f.within_ns(1000) as f64),
        ratios.evenness,
        without.evenness(),
        with.to_cache,
    );
    ratios
}

#[test]
fn a_full_cache_is_no_slower_than_none() {
    for (store, requests) in STORES {
        for depth in [1, 8, 32] {
            let ratios = compare(store, depth, requests, 16 << 20);
            assert!(ratios.throughput >= 1.0, "{store} at depth {depth}");
            assert!(ratios.tail <= 1.2, "{store} at depth {depth}");
            assert!(ratios.evenness >= 0.2, "{store} at depth {depth}");
        }
    }
}

/// A disk answers four times in 10 ms, and some of its answers take that long: it has no even 10 ms without a cache
/// either.
#[test]
fn a_full_cache_is_no_slower_than_none_on_a_disk() {
    for depth in [1, 32] {
        let ratios = compare(DISK.0, depth, DISK.1, 16 << 20);
        assert!(ratios.throughput >= 1.0 && ratios.tail <= 1.2, "depth {depth}");
    }
}

/// The same at length, on a cache of 64 MiB.
#[test]
#[ignore = "takes minutes; prints the table of docs/design/throttle.md"]
fn a_full_cache_at_every_depth() {
    for (store, requests) in STORES.into_iter().chain([DISK]) {
        for depth in [1, 2, 4, 8, 16, 32, 64, 128] {
            compare(store, depth, requests * 4, 64 << 20);
        }
    }
}

/// Half of the clients' requests are reads, which are not cached; a command destages everything that is written all
/// the time.
#[test]
fn clients_hardly_notice_that_everything_is_destaged() {
    for (store, requests) in STORES {
        let (_, cached) = volume(store, 16 << 20);
        let load = Load { reads_percent: 50, ..load(8, requests / 2, 16 << 20) };
        let without = closed_loop(&cached, &load).unwrap();
        let with = closed_loop(&cached, &Load { destages: true, ..load }).unwrap();
        let ratio = with.per_second / without.per_second;
        let tail = with.within_ns(999) as f64 / without.within_ns(999) as f64;
        println!("{store:20} while everything is destaged: throughput {ratio:.2}, 99.9% {tail:.2}");
        assert!(ratio >= 0.8, "{store}");
    }
}
