//! The commands, one file each.

pub mod attach;
pub mod bench;
pub mod check;
pub mod checkpoint;
pub mod completions;
pub mod detach;
pub mod explain;
pub mod flush;
pub mod format;
pub mod grow;
pub mod inspect;
pub mod man;
pub mod mark;
pub mod pair;
pub mod recover;
pub mod run;
pub mod serve;
pub mod set;
pub mod shrink;
pub mod sim;
pub mod status;
pub mod tune;
pub mod waits;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use forebay_control::{
    Answer, Client, ClientError, ControlError, FailureKind, Progress, Request, VolumeReport, VolumeState,
};
use forebay_policy::time;

use crate::control_path::{control_path, runtime_directory};
use crate::failure::Failure;
use crate::nearest::nearest;

/// While a daemon is waited for, it is looked for this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Whoever waits for longer is told what for.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// The daemon has answered, and not what it was asked.
pub fn not_an_answer() -> Failure {
    let message = "the daemon answers something else than it was asked: it is of another version; use its `forebay`, or start it anew";
    Failure::new(FailureKind::Failed, message)
}

/// Sends one request to the daemon that serves `volume`, whose socket is `control` or the default one.
pub fn ask(
    volume: &str,
    control: Option<PathBuf>,
    request: &Request,
    progress: impl FnMut(Progress),
) -> Result<Answer, Failure> {
    let named = control.is_some();
    let path = match control {
        Some(path) => path,
        None => control_path(volume)?,
    };
    let answer = Client::connect(&path).and_then(|mut client| client.call(request, progress));
    Ok(answer.map_err(|e| if named { e } else { told_elsewhere(volume, e) })?)
}

/// Where a volume has no daemon of its own: why the one that was to serve it does not, or which volume may be meant.
pub fn told_elsewhere(volume: &str, error: ClientError) -> ClientError {
    if !matches!(error, ClientError::NotRunning(_) | ClientError::Gone(_)) {
        return error;
    }
    let all = runtime_directory().map(|directory| status::everywhere(&directory)).unwrap_or_default();
    told_by(&all, volume, error)
}

/// The same of what all daemons have said.
fn told_by(all: &[VolumeReport], volume: &str, error: ClientError) -> ClientError {
    let unserved = all.iter().find_map(|known| match known {
        VolumeReport::Unserved(known) if known.name == volume && known.state == VolumeState::Refused => {
            Some(known)
        }
        _ => None,
    });
    match (unserved, nearest(volume, all.iter().map(VolumeReport::name))) {
        (Some(known), _) => ControlError::new(FailureKind::Refused, known.reason.clone()).into(),
        (None, Some(meant)) if meant != volume => {
            ControlError::new(FailureKind::Failed, format!("{error}; did you mean `{meant}`?")).into()
        }
        _ => error,
    }
}

/// Sends one request to the daemon behind `path`, and waits up to `wait_ms` for one that is not there yet. A daemon opens its
/// socket when it has recovered its volumes. The request has to be one that may be sent twice: a daemon that went away before it
/// answered is waited for, too.
///
/// `elsewhere` makes of the error that there is no daemon what others say: a volume that is refused is not waited for.
pub fn ask_when_there(
    path: &Path,
    wait_ms: u64,
    request: &Request,
    elsewhere: impl Fn(ClientError) -> ClientError,
) -> Result<Answer, ClientError> {
    let (began, wait) = (Instant::now(), Duration::from_millis(wait_ms));
    let (mut first, mut told) = (true, false);
    loop {
        let answer = Client::connect(path).and_then(|mut client| client.call(request, |_| {}));
        let left = wait.saturating_sub(began.elapsed());
        let absent = match answer {
            Err(e @ (ClientError::NotRunning(_) | ClientError::Gone(_))) if first || left.is_zero() => {
                elsewhere(e)
            }
            Err(e @ (ClientError::NotRunning(_) | ClientError::Gone(_) | ClientError::Lost { .. })) => e,
            answered => return answered,
        };
        first = false;
        let refused = matches!(&absent, ClientError::Said(said) if said.kind == FailureKind::Refused);
        if refused || left.is_zero() {
            return Err(absent);
        }
        if !told && began.elapsed() >= TELL_AFTER {
            told = true;
            let (path, wait) = (path.display(), time::show_ms(wait_ms));
            eprintln!("waiting up to {wait} for a daemon at {path}");
        }
        thread::sleep(LOOK_EVERY.min(left));
    }
}
