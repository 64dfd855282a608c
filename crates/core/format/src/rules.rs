//! What a log may say: rules for what is whole by its checksum. No run of a volume breaks one of them, so that a log which does is corrupt.
//!
//! Recovery and the verifier hold the same rules against a log, so that what the one reports the other refuses. Whether a single structure
//! makes sense at all is told by its decoder ([`crate::FormatError::Field`]); here it is held against the volume and against what came before it:
//!
//! ```text
//!  of itself:       durable_upto < seq,  clean_upto < seq,  1 <= tail <= segment_seq,  every block lies in the volume
//!  of its segment:  fewer than SEGMENT_BLOCKS_MAX blocks in all its records
//!  in the log:      neither tail nor clean_upto goes back from a record to the next
//! ```

use forebay_block::{BLOCK_BYTES, Seq};
use thiserror::Error;

use crate::FormatError;
use crate::record::{Extent, ExtentKind, RecordHeader};
use crate::summary::Trailer;

/// The records of a segment speak of fewer blocks than this, those of supersede extents not counted.
pub const SEGMENT_BLOCKS_MAX: u64 = 0xFFFF;

/// What a log says that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Impossible {
    /// A structure is whole by its checksum, and one of its fields makes no sense.
    #[error("its field '{0}' has a value that makes no sense")]
    Field(&'static str),
    /// `durable_upto` or `clean_upto` is not before the record.
    #[error("something that follows it was durable or destaged before it")]
    Foresight,
    /// `tail` lies behind the record's segment, or before the first.
    #[error("the log begins behind it, or before its first segment")]
    Tail,
    /// An extent has blocks that the volume does not have.
    #[error("it has blocks behind the volume's end")]
    BehindEnd,
    /// The segment's records speak of more blocks than a segment can hold.
    #[error("its segment speaks of more blocks than one can")]
    TooManyBlocks,
    /// An earlier record had come further.
    #[error("the log's tail or what is destaged went back")]
    WentBack,
}

impl Impossible {
    /// What a decoder has found to be whole and without sense; `None` if it has found something else.
    pub const fn of(error: &FormatError) -> Option<Self> {
        match error {
            FormatError::Field(field) => Some(Self::Field(field)),
            _ => None,
        }
    }
}

/// The rules for one log, held against its records in their order.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    volume_blocks: u64,
    segment_blocks: u64,
    tail: u64,
    clean_upto: Seq,
}

impl Rules {
    /// Those of a volume of so many bytes; nothing has been said yet.
    pub const fn new(volume_bytes: u64) -> Self {
        Self {
            volume_blocks: volume_bytes.div_ceil(BLOCK_BYTES),
            segment_blocks: 0,
            tail: 0,
            clean_upto: Seq(0),
        }
    }

    /// The records that follow are those of the next segment.
    pub const fn next_segment(&mut self) {
        self.segment_blocks = 0;
    }

    /// The next record.
    ///
    /// # Errors
    /// [`Impossible`] if it breaks a rule.
    pub fn record(&mut self, h: &RecordHeader) -> Result<(), Impossible> {
        self.record_alone(h)?;
        self.progress(h.tail, h.clean_upto)?;
        self.extents(&h.extents)
    }

    /// What a trailer says of the last record of the next segment.
    ///
    /// # Errors
    /// [`Impossible`] if it breaks a rule.
    pub fn trailer(&mut self, t: &Trailer) -> Result<(), Impossible> {
        Self::trailer_alone(t)?;
        self.progress(t.tail, t.clean_upto)
    }

    /// A record that may be part of the log or not: what it says of itself and of the volume.
    ///
    /// # Errors
    /// [`Impossible`] if it breaks a rule.
    pub fn record_alone(&self, h: &RecordHeader) -> Result<(), Impossible> {
        h.extents.iter().try_for_each(|e| self.within(e))?;
        if h.durable_upto >= h.seq {
            return Err(Impossible::Foresight);
        }
        Self::place(h.seq, h.segment_seq, h.tail, h.clean_upto)
    }

    /// The same of a trailer.
    ///
    /// # Errors
    /// [`Impossible`] if it breaks a rule.
    pub fn trailer_alone(t: &Trailer) -> Result<(), Impossible> {
        Self::place(t.last_seq, t.segment_seq, t.tail, t.clean_upto)
    }

    fn place(seq: Seq, segment_seq: u64, tail: u64, clean_upto: Seq) -> Result<(), Impossible> {
        if clean_upto >= seq {
            return Err(Impossible::Foresight);
        }
        if tail == 0 || tail > segment_seq {
            return Err(Impossible::Tail);
        }
        Ok(())
    }

    fn within(&self, e: &Extent) -> Result<(), Impossible> {
        let end = e.block.0.checked_add(u64::from(e.count));
        if end.is_some_and(|end| end <= self.volume_blocks) { Ok(()) } else { Err(Impossible::BehindEnd) }
    }

    fn progress(&mut self, tail: u64, clean_upto: Seq) -> Result<(), Impossible> {
        let went_back = self.tail > tail || self.clean_upto > clean_upto;
        (self.tail, self.clean_upto) = (tail, clean_upto);
        if went_back { Err(Impossible::WentBack) } else { Ok(()) }
    }

    /// The extents of the next record, of which nothing else is known but by its segment's summary.
    ///
    /// # Errors
    /// [`Impossible`] if they break a rule.
    pub fn extents(&mut self, extents: &[Extent]) -> Result<(), Impossible> {
        for e in extents {
            self.within(e)?;
            if e.kind != ExtentKind::Supersede {
                self.segment_blocks += u64::from(e.count);
            }
            if self.segment_blocks >= SEGMENT_BLOCKS_MAX {
                return Err(Impossible::TooManyBlocks);
            }
        }
        Ok(())
    }
}
