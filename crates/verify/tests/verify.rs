//! Tests of the verifier against images that a small writer of their own makes, without an engine.

#[cfg(test)]
mod verify {
    mod damage;
    mod fixtures;
    mod flips;
    mod fuzz;
    mod shown;
    mod targets;
    mod writer;
}
