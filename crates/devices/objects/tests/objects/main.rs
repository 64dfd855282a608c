//! Vaults on a store in memory.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod life;
mod world;
