//! Entry point of the fuzz target `proc_files` for the kernel's table of mounts. It must return: no panic, no overflow.

use crate::mounts;

/// A file of `/proc`.
pub fn proc_files(data: &[u8]) {
    for line in data.split(|b| *b == b'\n') {
        if let Some(entry) = mounts::parse_line(line) {
            assert!(entry.mount_point.as_os_str().len() <= line.len(), "nothing is made longer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_kernel_says_is_borne() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/proc_files");
        for file in std::fs::read_dir(corpus).unwrap() {
            let seed = std::fs::read(file.unwrap().path()).unwrap();
            for at in 0..seed.len() {
                proc_files(&seed[..at]);
                for other in [0, b' ', b':', b'\\', b'7', b'-', 0xff] {
                    let mut bytes = seed.clone();
                    bytes[at] = other;
                    proc_files(&bytes);
                }
            }
        }
    }
}
