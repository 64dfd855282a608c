//! How a running `forebay serve` is asked and told things: a unix socket on which each line is one JSON object.
//!
//! A client sends a [`Request`] and reads lines until one is an answer or an error; long commands send progress
//! lines before it. The daemon implements [`Controller`]; [`Server`] owns the socket and its threads; [`Client`] is
//! the other end. [`VolumeStatus`] is the documented contract of `forebay status --json`, and the command line's text
//! and the Prometheus metrics are made from the same struct.
#![forbid(unsafe_code)]

mod client;
mod explain;
mod lines;
mod metrics;
mod protocol;
mod server;
mod status;
mod timestamp;

pub use client::{CONNECT_MAX, Client, ClientError};
pub use explain::{ExplainRow, Explanation, InheritedRow, WaitRow};
pub use forebay_guard::BindError;
pub use metrics::prometheus;
pub use protocol::{
    Answer, AttachedDevice, CheckpointAction, CheckpointRow, ControlError, FailureKind, GroupState,
    GroupStep, Line, Progress, Request, parse_line, parse_request,
};
pub use server::{CONNECTIONS_MAX, Controller, LINE_BYTES_MAX, Server, can_bind};
pub use status::{Field, Knob, Measure, Unserved, VolumeReport, VolumeState, VolumeStatus};
pub use timestamp::rfc3339;
