//! The named checkpoints of a volume, as whoever has no part in it finds them in the store.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::calls::HEAD_GUESS_BYTES;
use crate::codec::{Damage, Identity, Pointer, VolumeMark};
use crate::face::Position;
use crate::names;
use crate::store::{Answer, Request, StoreError};

/// A named checkpoint, and since when there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// The state that it keeps.
    pub at: Position,
    /// When it was named, by its owner's clock: nanoseconds since 1970.
    pub time_ns: u64,
}

/// Why checkpoints cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// There is no volume.
    #[error("no volume is here")]
    NoVolume,
    /// An object is damaged.
    #[error("{name}: {what}")]
    Corrupt {
        /// The object.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A request was not carried out.
    #[error("{name}: {error}")]
    Store {
        /// What it was about.
        name: String,
        /// What the store said.
        error: StoreError,
    },
}

/// Lists them, by name; `ask` carries out one request.
///
/// # Errors
/// [`ListError`]; no request is asked twice.
pub fn named_in(mut ask: impl FnMut(&Request) -> Result<Answer, StoreError>) -> Result<Vec<Kept>, ListError> {
    let Some(mark) = get(&mut ask, names::VOLUME)? else { return Err(ListError::NoVolume) };
    let corrupt =
        |name: &str, damage: Damage| ListError::Corrupt { name: name.to_owned(), what: damage.to_string() };
    let volume = VolumeMark::decode(&mark).map_err(|damage| corrupt(names::VOLUME, damage))?.volume;
    // One that was given up and named anew may have two for a moment, of which readers take the later.
    let mut newest: BTreeMap<String, Position> = BTreeMap::new();
    let mut after = String::new();
    loop {
        let request = Request::List { prefix: names::CHECKPOINTS.to_owned(), after: after.clone() };
        let (names, more) = match ask(&request) {
            Ok(Answer::Page { names, more }) => (names, more),
            Ok(_) => return Err(strange(names::CHECKPOINTS)),
            Err(error) => {
                return Err(ListError::Store { name: names::CHECKPOINTS.to_owned(), error });
            }
        };
        for (name, at) in names.iter().filter_map(|name| names::checkpoint_of(name)) {
            let newest = newest.entry(name.to_owned()).or_insert(at);
            *newest = at.max(*newest);
        }
        match names.into_iter().next_back() {
            Some(last) if more => after = last,
            _ => break,
        }
    }
    let mut found = Vec::new();
    for (name, at) in newest {
        let object = names::checkpoint(&name, at);
        // One that is gone was given up meanwhile.
        let Some(bytes) = get(&mut ask, &object)? else { continue };
        let pointer = Pointer::decode(&bytes, &Identity { volume, at });
        let pointer = pointer.map_err(|damage| corrupt(&object, damage))?;
        found.push(Kept { name, at, time_ns: pointer.stamp.time_ns });
    }
    Ok(found)
}

fn get(
    ask: &mut impl FnMut(&Request) -> Result<Answer, StoreError>,
    name: &str,
) -> Result<Option<Vec<u8>>, ListError> {
    match ask(&Request::Get { name: name.to_owned(), from: 0, len: HEAD_GUESS_BYTES }) {
        Ok(Answer::Object { bytes, .. }) => Ok(Some(bytes)),
        Ok(_) => Err(strange(name)),
        Err(StoreError::Missing) => Ok(None),
        Err(error) => Err(ListError::Store { name: name.to_owned(), error }),
    }
}

fn strange(name: &str) -> ListError {
    let error = StoreError::Unknown("the store's answer is not one to this request".to_owned());
    ListError::Store { name: name.to_owned(), error }
}
