//! The bytes on the cache device and beside the backing.
#![forbid(unsafe_code)]

mod layout;

pub use layout::Layout;
