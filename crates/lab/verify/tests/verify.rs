//! Tests of the verifier against images that a small writer of their own makes, without an engine; and of what the engine's recovery makes of
//! images that say what cannot be.

#[cfg(test)]
mod verify {
    mod damage;
    mod fixtures;
    mod flips;
    mod fuzz;
    mod impossible;
    mod recovery;
    mod shown;
    mod targets;
    mod writer;
}
