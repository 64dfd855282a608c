//! Holds `SPEC.md`, the golden files and the code together.

mod format {
    mod golden;
    mod samples;
    mod spec;
}
