//! What is said on the control socket.
//!
//! ```text
//! client → {"command":"flush","volume":"db"}
//! daemon → {"progress":{"remaining_bytes":1048576,"total_bytes":4194304}}
//! daemon → {"result":"done"}          or   {"error":{"kind":"failed","message":"..."}}
//! ```

use std::time::Duration;

use forebay_guard::BindError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Explanation, VolumeReport, WaitRow};

/// What a client asks. The wire form is one JSON object with the command's name under `command`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The figures of one volume, or of all that the daemon serves.
    Status {
        /// The volume's name; all volumes if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        volume: Option<String>,
    },
    /// Destage everything and wait; progress is reported.
    Flush {
        /// The volume's name.
        volume: String,
    },
    /// Declare a consistency point on each of these volumes, and wait until it is committed; answered by their numbers.
    Mark {
        /// The volumes' names.
        volumes: Vec<String>,
        /// The point's name, at most 64 bytes; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        label: String,
        /// How long to wait in milliseconds, at most, while no point can be declared yet; the daemon's own limit if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u64>,
        /// Report progress as long as it takes. Without it the answer is the only line.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        progress: bool,
    },
    /// Make a named checkpoint of what the backing has, give one up, or list them.
    Checkpoint {
        /// The volume's name.
        volume: String,
        /// What is to be done.
        action: CheckpointAction,
    },
    /// A step of a round of a consistency group, from one daemon to another; answered by how the member stands then.
    Common {
        /// The volume's name.
        volume: String,
        /// Names of the consistency group and its members, which must be those that the member knows.
        names: String,
        /// Which round; 0 only asks.
        round: u64,
        /// Which run of the member it was begun with.
        run: u64,
        /// What is to be done.
        step: GroupStep,
    },
    /// Change settings of a running volume: all of them or, if one is not understood, none.
    Set {
        /// The volume's name.
        volume: String,
        /// Names and values, spelled as on the command line.
        settings: Vec<(String, String)>,
    },
    /// Why writes of a volume went where they went; answered by an account.
    Explain {
        /// The volume's name.
        volume: String,
    },
    /// What critical tasks waited for.
    Waits {
        /// The volume's name.
        volume: String,
    },
    /// Make a kernel block device of a volume; answered by its path.
    Attach {
        /// The volume's name.
        volume: String,
    },
    /// Take the kernel block device of a volume away.
    Detach {
        /// The volume's name.
        volume: String,
        /// Also destage everything, stop serving the volume and make the cache forget it for good.
        #[serde(default)]
        release: bool,
    },
}

impl Request {
    /// A daemon that says nothing for so long does not answer. What is answered from memory is answered at once; what may take
    /// long tells of itself several times a second as long as the volume works.
    pub const fn silence_max(&self) -> Duration {
        Duration::from_secs(match self {
            Self::Status { .. } => 5,
            Self::Set { .. } | Self::Explain { .. } | Self::Waits { .. } => 10,
            // It waits for the journal on the backing's side, and whoever leads the round cannot wait for ever.
            Self::Common { .. } => 20,
            Self::Flush { .. }
            | Self::Mark { .. }
            | Self::Checkpoint { .. }
            | Self::Attach { .. }
            | Self::Detach { .. } => 30,
        })
    }
}

/// What is to become of named checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CheckpointAction {
    /// Make one of this name; done when it is durable.
    Create(String),
    /// Give up that of this name; done when nobody can open it any more.
    Delete(String),
    /// Answered by those that there are.
    List,
}

/// A named checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRow {
    /// Its name.
    pub name: String,
    /// When it was named, in UTC (RFC 3339).
    pub named_at: String,
}

/// A step of a round of a consistency group, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum GroupStep {
    /// The round begins, and no other goes on.
    Begin,
    /// A point that is prepared is committed, or forgotten.
    Settle {
        /// Its number.
        point: u64,
        /// It is committed.
        keep: bool,
    },
    /// Cut, and acknowledge nothing more for a while.
    Hold,
    /// Go on.
    Release,
    /// Make the group that ends at the cut durable, and do not apply it.
    Prepare {
        /// The point's name.
        label: String,
        /// Which backings share the point, as 32 hexadecimal digits.
        set: String,
        /// Which of the members this is.
        member: u32,
    },
}

/// How a member of a consistency group stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GroupState {
    /// Which run answers.
    pub run: u64,
    /// The newest round that it knows.
    pub round: u64,
    /// The common point at which its backing is, or 0.
    pub decided: u64,
    /// The common point that is prepared, or 0.
    pub prepared: u64,
    /// A point should be declared.
    pub wanted: bool,
    /// Identity of its backing, as 32 hexadecimal digits.
    pub backing: String,
}

impl GroupState {
    /// Identity of its backing.
    pub fn backing_id(&self) -> Option<[u8; 16]> {
        u128::from_str_radix(&self.backing, 16).ok().map(u128::to_le_bytes)
    }
}

/// The end of a command that succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is done; there is nothing to tell.
    Done,
    /// It is done, and has another effect than one may think: one sentence each.
    Warned(Vec<String>),
    /// The figures that were asked for.
    Volumes(Vec<VolumeReport>),
    /// The kernel block device.
    Device(AttachedDevice),
    /// The volume is parted from its cache.
    Released {
        /// The configuration file that the daemon was started with, which still names that cache.
        config: Option<String>,
    },
    /// Numbers of the consistency points, in the order of the volumes that were named.
    Points(Vec<u64>),
    /// The named checkpoints that there are.
    Checkpoints(Vec<CheckpointRow>),
    /// How the member of a consistency group stands.
    Common(GroupState),
    /// The account that was asked for.
    Explanation(Explanation),
    /// The waits that were asked for.
    Waits(Vec<WaitRow>),
}

/// A kernel block device of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedDevice {
    /// Its path.
    pub path: String,
    /// What whoever attached it should know: one sentence each, with what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How far a long command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes still to be destaged. New writes may make it grow.
    pub remaining_bytes: u64,
    /// Bytes there were to destage when the command began.
    pub total_bytes: u64,
}

/// What kind of failure a command ended with; each has an exit code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// It was tried and failed.
    Failed,
    /// It was not understood: unknown volume, setting or value, or a malformed request.
    Usage,
    /// It was refused for safety: foreign, stale, in use, or data would be lost.
    Refused,
    /// Corruption was found.
    Corrupt,
}

impl FailureKind {
    /// The exit code that scripts see.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Corrupt => 4,
        }
    }
}

/// The end of a command that failed: what kind, and one sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{message}")]
pub struct ControlError {
    /// The stable kind.
    pub kind: FailureKind,
    /// What happened, to what, and what to do.
    pub message: String,
}

impl ControlError {
    /// An error of `kind` with a sentence for a person.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl From<BindError> for ControlError {
    fn from(e: BindError) -> Self {
        let (kind, way_out) = match e {
            BindError::InUse { .. } => {
                (FailureKind::Refused, "; stop that process first, or choose another socket with --control")
            }
            BindError::NotASocket { .. } => {
                (FailureKind::Refused, "; remove it, or choose another socket with --control")
            }
            BindError::Unsafe { .. } => {
                (FailureKind::Refused, "; choose a directory of your own with --control")
            }
            BindError::Turn(_) => (FailureKind::Refused, ""),
            BindError::Io { .. } => (FailureKind::Failed, ""),
        };
        Self::new(kind, format!("control socket: {e}{way_out}"))
    }
}

/// One line from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// More lines follow.
    Progress(Progress),
    /// The last line of a command that succeeded.
    Result(Answer),
    /// The last line of a command that failed.
    Error(ControlError),
}

/// Reads a client's line.
///
/// # Errors
/// [`FailureKind::Usage`] with what is wrong with it.
pub fn parse_request(line: &[u8]) -> Result<Request, ControlError> {
    serde_json::from_slice(line)
        .map_err(|e| ControlError::new(FailureKind::Usage, format!("the request is not understood: {e}")))
}

/// Reads a daemon's line.
///
/// # Errors
/// [`FailureKind::Failed`]: what answered is no Forebay daemon, or one of another version.
pub fn parse_line(line: &[u8]) -> Result<Line, ControlError> {
    serde_json::from_slice(line).map_err(|e| {
        ControlError::new(
            FailureKind::Failed,
            format!(
                "the answer on the control socket is not understood ({e}); is the daemon of another version?"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_have_the_documented_wire_form() {
        let cases = [
            (Request::Status { volume: None }, r#"{"command":"status"}"#),
            (Request::Explain { volume: "db".into() }, r#"{"command":"explain","volume":"db"}"#),
            (Request::Flush { volume: "db".into() }, r#"{"command":"flush","volume":"db"}"#),
            (
                Request::Mark {
                    volumes: vec!["db".into()],
                    label: "nightly".into(),
                    wait_ms: None,
                    progress: false,
                },
                r#"{"command":"mark","volumes":["db"],"label":"nightly"}"#,
            ),
            (
                Request::Checkpoint {
                    volume: "db".into(),
                    action: CheckpointAction::Create("monday".into()),
                },
                r#"{"command":"checkpoint","volume":"db","action":{"create":"monday"}}"#,
            ),
            (
                Request::Checkpoint { volume: "db".into(), action: CheckpointAction::List },
                r#"{"command":"checkpoint","volume":"db","action":"list"}"#,
            ),
            (
                Request::Set { volume: "db".into(), settings: vec![("on-full".into(), "wait".into())] },
                r#"{"command":"set","volume":"db","settings":[["on-full","wait"]]}"#,
            ),
            (
                Request::Detach { volume: "db".into(), release: true },
                r#"{"command":"detach","volume":"db","release":true}"#,
            ),
        ];
        for (request, text) in cases {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(parse_request(text.as_bytes()).unwrap(), request);
        }
    }

    #[test]
    fn kinds_of_failure_have_the_documented_exit_codes() {
        use FailureKind::{Corrupt, Failed, Refused, Usage};
        assert_eq!([Failed, Usage, Refused, Corrupt].map(FailureKind::exit_code), [1, 2, 3, 4]);
    }

    #[test]
    fn a_member_of_a_group_names_its_backing_in_hexadecimal() {
        let state = |backing: &str| GroupState { backing: backing.into(), ..GroupState::default() };
        let id: [u8; 16] = std::array::from_fn(|n| n as u8);
        assert_eq!(state("0f0e0d0c0b0a09080706050403020100").backing_id(), Some(id));
        assert_eq!(state("none").backing_id(), None);
    }

    /// As `forebay.h` and the crate `forebay-hint` read it.
    #[test]
    fn points_have_the_documented_wire_form() {
        let line = Line::Result(Answer::Points(vec![7]));
        assert_eq!(serde_json::to_string(&line).unwrap(), r#"{"result":{"points":[7]}}"#);
    }

    #[test]
    fn devices_have_the_documented_wire_form() {
        let device = AttachedDevice { path: "/dev/loop0".into(), warnings: Vec::new() };
        let line = Line::Result(Answer::Device(device.clone()));
        assert_eq!(serde_json::to_string(&line).unwrap(), r#"{"result":{"device":{"path":"/dev/loop0"}}}"#);
        let warned = Line::Result(Answer::Device(AttachedDevice { warnings: vec!["slow".into()], ..device }));
        assert_eq!(parse_line(serde_json::to_string(&warned).unwrap().as_bytes()).unwrap(), warned);
    }

    #[test]
    fn unknown_commands_and_fields_are_refused_by_name() {
        let e = parse_request(br#"{"command":"destroy","volume":"db"}"#).unwrap_err();
        assert_eq!(e.kind, FailureKind::Usage);
        assert!(e.message.contains("destroy") && e.message.contains("flush"), "{e}");
        let e = parse_request(br#"{"command":"flush","volume":"db","force":true}"#).unwrap_err();
        assert!(e.message.contains("force"), "{e}");
    }

    /// The seeds of the fuzz targets are lines that the protocol has.
    #[test]
    fn fuzzing_starts_from_lines_of_the_protocol() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
        let seeds = |target: &str| -> Vec<Vec<u8>> {
            let files = std::fs::read_dir(corpus.join(target)).unwrap().map(|f| f.unwrap().path());
            let seeds =
                files.filter(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with("seed-")));
            seeds.map(|f| std::fs::read(f).unwrap()).collect()
        };
        let (requests, lines) = (seeds("control_request"), seeds("control_line"));
        assert!(!requests.is_empty() && requests.iter().all(|r| parse_request(r).is_ok()));
        assert!(!lines.is_empty() && lines.iter().all(|l| parse_line(l).is_ok()));
    }

    proptest! {
        #[test]
        fn hostile_lines_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_request(&bytes);
            let _ = parse_line(&bytes);
        }

        #[test]
        fn damaged_requests_never_panic(at in 0usize..60, byte in any::<u8>(), depth in 0usize..100_000) {
            let mut line = br#"{"command":"set","volume":"db","settings":[["on-full","wait"]]}"#.to_vec();
            line[at] = byte;
            let _ = parse_request(&line);
            let _ = parse_request("[".repeat(depth).as_bytes());
        }

        #[test]
        fn every_request_survives_the_wire(volume in ".*", key in ".*", value in ".*", release in any::<bool>()) {
            for request in [
                Request::Set { volume: volume.clone(), settings: vec![(key, value)] },
                Request::Detach { volume: volume.clone(), release },
                Request::Status { volume: Some(volume) },
            ] {
                let text = serde_json::to_string(&request).unwrap();
                prop_assert!(!text.contains('\n'));
                prop_assert_eq!(parse_request(text.as_bytes()).unwrap(), request);
            }
        }
    }
}
