//! Hash tables whose order does not depend on the process: the same events give the same effects, always.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// A hash table with a fixed seed. Its keys are chosen by the engine, or block numbers, where a bad distribution
/// costs time within the bound on outstanding requests, nothing else.
pub(crate) type Table<K, V> = HashMap<K, V, FixedState>;
