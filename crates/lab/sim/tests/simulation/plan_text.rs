//! The text of plans, damaged: the fuzz target `plan`, over its seeds and the kept plans.

use std::path::Path;

use forebay_sim::plan::Plan;
use forebay_sim::random::Random;

const MUTATIONS: u64 = 20_000;

fn texts() -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dirs = [here.join("plans"), here.join("../../../fuzz/corpus/plan")];
    let files = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn plans_that_anybody_could_write_are_borne_and_written_as_they_were_read() {
    let texts = texts();
    let mut random = Random::new(1);
    let mut read = 0;
    for _ in 0..MUTATIONS {
        let mut bytes = random.pick(&texts).clone();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = match random.percent(50) {
                true => b'0' + random.below(10) as u8,
                false => random.below(128) as u8,
            };
        }
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        if let Ok(plan) = text.parse::<Plan>() {
            read += 1;
            assert_eq!(plan.to_string().parse::<Plan>().ok().as_ref(), Some(&plan), "{text}");
        }
    }
    assert!(read > MUTATIONS / 10, "hardly any plan was one");
}
