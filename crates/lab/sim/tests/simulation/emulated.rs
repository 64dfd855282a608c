//! Worlds whose devices take the time of real ones.

use forebay_emulate::{Kind, Settings};
use forebay_sim::campaign::Campaign;
use forebay_sim::generate;
use forebay_sim::plan::Plan;
use forebay_sim::run::Simulator;
use forebay_sim::trace::Detail;

const SEEDS: u64 = 60;

#[test]
fn every_kind_of_device_holds_the_promises() {
    let mut campaign = Campaign::default();
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        for seed in 0..SEEDS {
            let mut plan = generate::plan(1_000 * i as u64 + seed, Default::default());
            plan.cache_model = Some(Settings::of(Kind::ALL[seed as usize % Kind::ALL.len()]));
            plan.backing_model = Some(Settings::of(kind));
            let finding = campaign.differs(&plan, true);
            assert!(finding.is_none(), "seed {}: {}\n{plan}", plan.seed, finding.unwrap().violation);
        }
    }
    assert!(campaign.counted.stats.crashes() > 0 && campaign.counted.stats.requests > 1000);
}

#[test]
fn models_are_a_part_of_the_plan() {
    let mut plan = generate::plan(7, Default::default());
    (plan.cache_model, plan.backing_model) =
        (Some("nvdram".parse().unwrap()), Some("hdd-7k2,queue=4".parse().unwrap()));
    let text = plan.to_string();
    assert!(text.contains("\nemulate cache nvdram\nemulate backing hdd-7k2,queue=4\n"), "{text}");
    assert_eq!(text.parse::<Plan>().unwrap(), plan);
    let told = text.replace("queue=4", "queue=0").parse::<Plan>().unwrap_err().to_string();
    assert!(told.contains("queue lies between 1 and 256"), "{told}");
    let told = text.replace("emulate cache", "emulate both").parse::<Plan>().unwrap_err().to_string();
    assert!(told.contains("cache, backing"), "{told}");

    let mut simulator = Simulator::default();
    let with = simulator.run(&plan, Detail::Hash);
    let without = simulator.run(&Plan { backing_model: None, ..plan.clone() }, Detail::Hash);
    assert_ne!(with.hash, without.hash, "the model decides when operations end");
    assert_eq!(simulator.run(&plan, Detail::Hash), with);
}

#[test]
fn some_seeds_have_models() {
    let with = (0..12_800).filter(|s| generate::plan(*s, Default::default()).backing_model.is_some()).count();
    assert!((120..280).contains(&with), "{with} of 12,800");
}
