//! A volume in an object store as a device.

mod client;
mod credentials;
mod uri;
mod workers;
