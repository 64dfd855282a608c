//! Prints what a cache that is full all the time costs and gains: `cargo run -p forebay-replay --example full_cache -- [STORE,..] [DEPTH,..] [CACHE] [REQUESTS]`.
use forebay_block::Origin;
use forebay_policy::Settings;
use forebay_replay::{Cache, Figures, Load, Volume, closed_loop};

fn line(name: &str, f: &Figures, than: Option<&Figures>) {
    let ratio = than.map_or(1.0, |t| f.per_second / t.per_second);
    let tail = than.map_or(1.0, |t| f.within_ns(999) as f64 / t.within_ns(999) as f64);
    let (p50, p99, p999) = (f.within_ns(500) / 1000, f.within_ns(990) / 1000, f.within_ns(999) / 1000);
    let empty = f.buckets.iter().filter(|n| **n == 0).count();
    let max = f.latencies_ns.last().unwrap_or(&0) / 1000;
    println!(
        "{name:24} {:9.0}/s {ratio:5.2}  p50 {p50:7} p99 {p99:7} p99.9 {p999:7} us max {max:7} {tail:6.2}  worst/median {:.2} empty {empty}/{}",
        f.per_second,
        f.evenness(),
        f.buckets.len()
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |n: usize, default: &str| args.get(n).cloned().unwrap_or(default.to_owned());
    let cache_mib: u64 = arg(2, "64").parse().unwrap();
    for store in arg(0, "ssd-sata:ssd-nvme:remote:hdd-10k").split(':') {
        for depth in arg(1, "1,8,32,128").split(',').map(|d| d.parse::<u64>().unwrap()) {
            let slow = store.starts_with("remote") || store.starts_with("hdd");
            let requests: u64 = arg(3, if slow { "12000" } else { "40000" }).parse().unwrap();
            let align: u32 = arg(4, "4096").parse().unwrap();
            let warm_up = cache_mib * 256 * 3 / 2 + if slow { 4000 } else { 10_000 };
            let load = Load {
                depth,
                reads_percent: 0,
                origin: Origin::default(),
                warm_up,
                requests,
                destages: false,
                seed: 1,
            };
            let plain = Volume {
                bytes: 1 << 30,
                backing: if store.starts_with("ssd") {
                    format!("{store},buffer=8M")
                } else {
                    store.to_owned()
                }
                .parse()
                .unwrap(),
                cache: None,
            };
            let cache = Cache {
                bytes: cache_mib << 20,
                device: "nvdram".parse().unwrap(),
                align,
                settings: Settings::default(),
            };
            let cached = Volume { cache: Some(cache), ..plain.clone() };
            let without = closed_loop(&plain, &load).unwrap();
            let with = closed_loop(&cached, &load).unwrap();
            line(&format!("{store} {depth} without"), &without, None);
            line(&format!("{store} {depth} with"), &with, Some(&without));
            println!("    to cache {:.2} stalls {}", with.to_cache, with.stalls);
        }
    }
}
