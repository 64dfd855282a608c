//! Named checkpoints of a volume in an object store.

use forebay_control::{Answer, CheckpointAction, CheckpointRow, FailureKind, rfc3339};
use forebay_device::{CheckpointChange, CheckpointError, DeviceSpec};
use forebay_host::{HostError, VolumeHandle};

use crate::failure::{Failure, from_host};

/// Carries out what a client asks for, of a volume with this backing.
pub fn carry_out(
    volume: &VolumeHandle,
    backing: &DeviceSpec,
    action: CheckpointAction,
) -> Result<Answer, Failure> {
    let change = match action {
        CheckpointAction::List => return list(backing).map(Answer::Checkpoints),
        CheckpointAction::Create(name) => CheckpointChange::Create(name),
        CheckpointAction::Delete(name) => CheckpointChange::Delete(name),
    };
    volume.checkpoint(change).map(|()| Answer::Done).map_err(|e| failure(&e))
}

fn failure(e: &HostError) -> Failure {
    match e {
        HostError::Checkpoint { error: CheckpointError::BadName | CheckpointError::Missing(_), .. } => {
            Failure::new(FailureKind::Usage, e.to_string())
        }
        e => from_host(e),
    }
}

/// Those that there are, from the store alone: who has the volume is not asked.
pub fn list(backing: &DeviceSpec) -> Result<Vec<CheckpointRow>, Failure> {
    let kept = match backing.remote() {
        Some(store) => store.checkpoints().map_err(|e| from_host(&e.into()))?,
        None => None,
    };
    let kept = kept.ok_or_else(|| {
        let message = format!("{backing} keeps no checkpoints: a volume in an object store (s3://) does");
        Failure::new(FailureKind::Refused, message)
    })?;
    let row =
        |kept: forebay_device::Checkpoint| CheckpointRow { name: kept.name, named_at: rfc3339(kept.time_ns) };
    Ok(kept.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_has_the_documented_exit_code() {
        let code =
            |error| failure(&HostError::Checkpoint { volume: "db".to_owned(), error }).kind.exit_code();
        assert_eq!(code(CheckpointError::BadName), 2);
        assert_eq!(code(CheckpointError::Missing("x".to_owned())), 2);
        assert_eq!(code(CheckpointError::Exists("x".to_owned())), 3);
        assert_eq!(code(CheckpointError::Unsupported), 3);
        assert_eq!(code(CheckpointError::ReadOnly), 3);
        assert_eq!(code(CheckpointError::Fenced("another host".to_owned())), 3);
        assert_eq!(code(CheckpointError::TooMany), 1);
        assert_eq!(code(CheckpointError::Busy), 1);
        assert_eq!(code(CheckpointError::Store("no answer".to_owned())), 1);
    }

    #[test]
    fn other_backings_keep_none() {
        for backing in ["/dev/null", "nbd://127.0.0.1:9/db", "rbd:pool/image"] {
            let e = list(&backing.parse().unwrap()).unwrap_err();
            assert!(e.kind == FailureKind::Refused && e.message.contains("keeps no checkpoints"), "{e}");
        }
    }
}
