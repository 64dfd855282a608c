//! What a request is for.

use crate::face::Position;

/// Who waits for the answer of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// The opening.
    Open(Step),
    /// The log: the object of this number exists.
    Log(u64),
    /// A read of a client, and which of its gets.
    Read(u64, usize),
    /// Whether another owner has come.
    Look,
    /// The claim of the owner that has come.
    Successor,
    /// Collection: a victim, by its row in the table of objects.
    Collect(u32),
    /// A checkpoint: one of its objects exists.
    Index(Indexing),
    /// A delete that nobody waits for, of an object in this row of the table, if it has one.
    Delete(Option<u32>),
    /// A page of names, to find what nobody needs.
    Sweep,
}

/// What the opening waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Volume,
    /// The pointers of a named checkpoint.
    Pointers,
    Pointer,
    /// The checkpoints.
    Checkpoints,
    Manifest,
    Part(u32),
    Epochs,
    Head(Position),
    /// Names behind the end of a log.
    Behind,
    /// An object behind the end of a log.
    Witness(Position),
    /// The end of a log once more, as this object is a witness that it was not the end.
    Gap(Position),
    /// The claim of an owner that has come later than all that are known.
    Later(u64),
    /// The claim of the owner that may still be at work.
    Holder,
    Claim,
    Fence,
    /// The claim of the owner that was quicker.
    Winner,
    Begin,
}

/// What a checkpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Indexing {
    Part(u32),
    Manifest,
    /// What readers find it by.
    Pointer,
    /// The same of an earlier one, in case that its owner did not come to it.
    OldPointer,
    /// What readers found one by is gone.
    Unpointed,
}
