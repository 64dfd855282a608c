//! Entry point of the fuzz target `proc_files` for what the kernel tells of locks and processes. It must return: no panic,
//! no overflow.

use forebay_guard::holder_in;

use crate::claim;

/// A file of `/proc`.
pub fn proc_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let found = holder_in(&text, "fe:00:5678", ":5678");
    assert!(found.is_none() || text.contains("FLOCK"), "nobody else holds a lock");
    let _ = claim::has_ended(&text);
    let _ = claim::is_killed(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_kernel_says_is_borne() {
        const LOCKS: &str = "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF\n";
        assert_eq!(holder_in(LOCKS, "fe:00:5678", ":5678"), Some(1234));
        assert!(claim::is_killed("ShdPnd:\t0000000000000100\n") && !claim::is_killed("ShdPnd:\t0\n"));
        assert!(
            claim::has_ended("7 (a) b) Z 1 7 7 0 -1 4194304") && !claim::has_ended("7 (a) S 1 7 7 0 -1 0")
        );
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/proc_files");
        for file in std::fs::read_dir(corpus).unwrap() {
            let seed = std::fs::read(file.unwrap().path()).unwrap();
            for at in 0..seed.len() {
                proc_files(&seed[..at]);
                for other in [0, b' ', b')', b':', b'9', b'-', 0xff] {
                    let mut bytes = seed.clone();
                    bytes[at] = other;
                    proc_files(&bytes);
                }
            }
        }
    }
}
