//! Vaults on a store in memory.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod client;
mod cost;
mod crash;
mod damage;
mod explore;
mod life;
mod lost;
mod noise;
mod oracle;
mod owners;
mod random;
mod sick;
mod world;
