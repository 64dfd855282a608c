//! Holds `SPEC.md`, the golden files and the code together.

#[cfg(test)]
mod format {
    mod golden;
    mod samples;
    mod spec;
}
