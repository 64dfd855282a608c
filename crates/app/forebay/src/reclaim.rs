//! Whether the daemon may be made to wait for its own block devices when memory runs short, and what is said of that.

use forebay_fuse::become_io_flusher;

/// How the process stands with the kernel's memory reclaim.
pub struct Reclaim {
    /// It never waits for write-back.
    exempt: bool,
}

impl Reclaim {
    /// Asks the kernel never to make this thread, and those that it starts from now on, wait for write-back.
    pub fn begin() -> Self {
        let asked = become_io_flusher();
        if let Err(e) = &asked {
            tracing::debug!(
                "memory reclaim may wait for volumes of this daemon: {}",
                forebay_block::words_of(e)
            );
        }
        Self { exempt: asked.is_ok() }
    }

    /// What whoever attaches the volume should know, and what to do.
    pub fn warning(&self, volume: &str) -> Option<String> {
        let sentence = format!(
            "the daemon lacks CAP_SYS_RESOURCE: it may hang for ever, with all programs that write to '{volume}', when a memory \
             cgroup that it shares with them is full; start it with this capability (docker run --cap-add SYS_RESOURCE), \
             or in a memory cgroup of its own"
        );
        (!self.exempt).then_some(sentence)
    }
}
