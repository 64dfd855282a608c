//! What an opening asks of the store.

use std::sync::Arc;

use crate::calls::{Calls, HEAD_GUESS_BYTES};
use crate::jobs::{Job, Step};
use crate::store::Request;

/// The beginning of an object.
pub(super) fn get(calls: &mut Calls<Job>, step: Step, name: String) {
    calls.start(Job::Open(step), Request::Get { name, from: 0, len: HEAD_GUESS_BYTES });
}

/// Names behind `after`.
pub(super) fn list(calls: &mut Calls<Job>, step: Step, prefix: String, after: String) {
    calls.start(Job::Open(step), Request::List { prefix, after });
}

/// An object that is made once.
pub(super) fn create(calls: &mut Calls<Job>, step: Step, name: String, bytes: Vec<u8>) {
    calls.start(Job::Open(step), Request::Create { name, bytes: Arc::new(bytes) });
}
