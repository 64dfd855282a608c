//! A store in memory with the faults that real ones have, for tests and simulators.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::store::{Answer, PAGE_NAMES_MAX, Request, StoreError};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is carried out and answered.
    Done,
    /// It is carried out; the answer is lost.
    AnswerLost,
    /// It is lost.
    Lost,
    /// It is answered as lost, and carried out later ([`Model::land`]).
    Late,
    /// It is refused for now.
    Refused,
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Model {
    objects: BTreeMap<String, Arc<Vec<u8>>>,
    late: Vec<Request>,
    page_names: usize,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects = self.objects.iter().map(|(name, bytes)| (name, bytes.len()));
        f.debug_map().entries(objects).finish()?;
        write!(f, " late: {:?}", self.late)
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new(PAGE_NAMES_MAX)
    }
}

impl Model {
    /// An empty store with so many names a page.
    pub const fn new(page_names: usize) -> Self {
        Self { objects: BTreeMap::new(), late: Vec::new(), page_names }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// Those that its fate or the state of the store brings.
    pub fn take(&mut self, request: &Request, fate: Fate) -> Result<Answer, StoreError> {
        let lost = || StoreError::Unknown("no answer in time".to_owned());
        match fate {
            Fate::Done => self.carry_out(request),
            Fate::AnswerLost => {
                let _ = self.carry_out(request);
                Err(lost())
            }
            Fate::Lost => Err(lost()),
            Fate::Late => {
                self.late.push(request.clone());
                Err(lost())
            }
            Fate::Refused => Err(StoreError::Busy("slow down".to_owned())),
        }
    }

    fn carry_out(&mut self, request: &Request) -> Result<Answer, StoreError> {
        match request {
            Request::Create { name, .. } if self.objects.contains_key(name) => Err(StoreError::Exists),
            Request::Create { name, bytes } => {
                self.objects.insert(name.clone(), Arc::clone(bytes));
                Ok(Answer::Created)
            }
            Request::Get { name, from, len } => {
                let bytes = self.objects.get(name).ok_or(StoreError::Missing)?;
                let end = from.saturating_add(*len).min(bytes.len() as u64) as usize;
                let part = bytes.get(*from as usize..end).unwrap_or_default();
                Ok(Answer::Object { bytes: part.to_vec(), size: bytes.len() as u64 })
            }
            Request::List { prefix, after } => {
                let begins = |name: &&String| name.starts_with(prefix) && *name > after;
                let mut names = self.objects.keys().filter(begins).cloned();
                let page: Vec<String> = names.by_ref().take(self.page_names).collect();
                Ok(Answer::Page { names: page, more: names.next().is_some() })
            }
            Request::Delete { name } => {
                self.objects.remove(name);
                Ok(Answer::Deleted)
            }
        }
    }

    /// How many requests are late.
    pub const fn late(&self) -> usize {
        self.late.len()
    }

    /// Carries out one of the late requests; its answer is lost.
    pub fn land(&mut self, which: usize) {
        if which < self.late.len() {
            let request = self.late.swap_remove(which);
            let _ = self.carry_out(&request);
        }
    }

    /// The objects.
    pub const fn objects(&self) -> &BTreeMap<String, Arc<Vec<u8>>> {
        &self.objects
    }

    /// The objects, to be damaged.
    pub const fn objects_mut(&mut self) -> &mut BTreeMap<String, Arc<Vec<u8>>> {
        &mut self.objects
    }
}
