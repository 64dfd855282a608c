//! Entry point of the fuzz target `proc_files` for what the kernel tells of a process's time. It must return: no panic, no
//! overflow.

use crate::cpu;

/// A file of `/proc`.
pub fn proc_files(data: &[u8]) {
    let _ = cpu::ticks_in(&String::from_utf8_lossy(data));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_kernel_says_is_borne() {
        let stat = "1234 (a) b) S 1 1234 1234 0 -1 4194304 105 0 0 0 7 3 0 0 20 0 1 0";
        assert_eq!(cpu::ticks_in(stat), 10);
        for at in 0..stat.len() {
            proc_files(&stat.as_bytes()[..at]);
            for other in [0, b' ', b')', b'9', b'-', 0xff] {
                let mut bytes = stat.as_bytes().to_vec();
                bytes[at] = other;
                proc_files(&bytes);
            }
        }
        assert_eq!(cpu::ticks_in(&stat.replace(" 7 3 ", " 18446744073709551615 3 ")), u64::MAX);
    }
}
