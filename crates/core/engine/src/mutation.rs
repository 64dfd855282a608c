//! Planted bugs, with which the simulator is tested: each must break a promise that it notices.
//!
//! A mutation is asked for at the place where it does wrong: `if self.mutant(Mutation::X) { .. }`. Without the feature
//! `mutations` the question is a constant `false` and nothing of it is left in the program; the released binary is
//! built without it. With the feature an engine has a mutation only if it was made by `Engine::with_mutation`.

macro_rules! mutations {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation {
            $($(#[doc = $text])+ $name,)+
        }

        #[cfg(feature = "mutations")]
        impl Mutation {
            /// Every mutation, with what it does wrong.
            pub const ALL: &[(Self, &'static str)] = &[$((Self::$name, concat!($($text),+)),)+];
        }
    };
}

mutations! {
    // The log's head.

    /// A write to the log is acknowledged when it is submitted.
    AcknowledgesBeforeWrite,
    /// A write to the log is acknowledged although an earlier record is not written yet.
    AcknowledgesOutOfOrder,
    /// The index speaks of a record as soon as it is submitted.
    IndexesAtSubmission,
    /// What is written to the cache is taken for durable without a flush.
    SkipsCacheFlush,
    /// A flush of the cache is taken to cover what was written after it was submitted.
    FlushCoversTooMuch,
    /// Durable writes to the cache are submitted as if a flush would follow.
    WritesVolatile,
    /// Forced unit access is forgotten.
    ForgetsFua,
    /// A flush is answered without waiting for the log.
    FlushForgetsLog,
    /// A flush is answered without waiting for the backing.
    FlushForgetsBacking,
    /// A record says that everything before it is clean although dirty blocks are left.
    CleanMarkTooEarly,
    /// Writes may use up the segments that are kept for what makes room.
    ForgetsReserve,
    /// The generation in records is never raised.
    ForgetsGeneration,
    /// The checksums in a record are those of the record before.
    StaleSequenceInChecksum,

    // The order at the backing.

    /// Sets are formed without looking at what depends on what.
    OrderIgnoresDependence,
    /// The next set is destaged before the progress of the last one is durable in the log.
    OrderForgetsProgress,
    /// Overwritten versions are not destaged.
    OrderDropsVersions,
    /// A bypass does not wait for what it depends on.
    OrderForgetsBypass,
    /// Records in the log do not say what they depend on.
    OrderForgetsDistance,
    /// A flush does not count as a barrier.
    OrderForgetsBarrier,
    /// The backing is taken for consistent as soon as the policy is chosen.
    OrderClaimsTooEarly,
    /// After the policy was changed the log goes on to say that the backing is consistent.
    OrderForgetsToRenounce,
    /// Work that kept to barriers only is taken for what counts every acknowledgement, when that is asked for.
    OrderTrustsWeaker,
    /// A bypass is let go while older versions of its blocks are in the log, of which its record makes only the newest void.
    OrderSupersedesNewest,
    /// Writing a lost block anew is taken for putting it in order.
    OrderForgetsLost,
    /// A backing that was once not consistent is never called so again.
    OrderNeverCaughtUp,
    /// Recovery forgets that older versions have to be destaged, too.
    OrderRecoversNewest,
    /// A log that fails is taken to say how far the backing has come.
    OrderRecordsNowhere,
    /// Of a set that slides, versions are void as soon as a newer one of their block is chosen.
    OrderVoidsEarly,

    // Groups.

    /// A group is committed before the journal's flush.
    JournalSkipsFlush,
    /// What a group holds is destaged before the head says that it is committed.
    JournalDestagesUncommitted,
    /// The head leaves groups behind that have not been destaged.
    JournalLeavesBehindEarly,
    /// The head is written as if a flush would follow.
    JournalHeadVolatile,
    /// A bypass does not wait for groups that hold its blocks and could be done again.
    JournalForgetsHeld,
    /// A group takes the version of a block that is current, whatever the group ends with.
    JournalTakesCurrent,
    /// A group takes along what the next record holds of it, but not wholly.
    JournalCutsRecords,
    /// What goes in any order does not wait until the journal says that the backing is not consistent.
    JournalForgetsToRenounce,
    /// A group is committed after a flush of the backing, in place of the journal's.
    JournalFlushesBacking,
    /// A committed version is taken for replaced although no group has the newer one yet.
    JournalReplacesEarly,
    /// A group is moved into its place although something else is on its way there.
    CommitForgetsPlaces,
    /// What a group in its place has replaced is destaged all the same.
    CommitKeepsOlder,

    // Consistency points.

    /// A group that ends at a point takes along what came later.
    PointTakesLater,
    /// A point is answered before the group that ends there is committed.
    PointAnsweredEarly,
    /// The head does not name the point at which the group ends.
    PointForgotten,
    /// The head goes on to name a point after a group that ends elsewhere.
    PointOutlivesGroup,
    /// A bypass that came after a point goes in place while the head names it, or before it is committed.
    PointForgetsBypass,
    /// Where each flush is a point it takes along what was issued before its answer.
    PointFlushLate,
    /// A common point is cut before everything that is under way has been acknowledged.
    CommonCutsEarly,
    /// A common point counts although writers were not held back any more when the last member had cut.
    CommonIgnoresExpiry,
    /// What is prepared is destaged before it is decided.
    CommonDestagesPrepared,
    /// What is prepared is committed without anybody having said so.
    CommonDecidesAlone,
    /// A volume that went on alone still says that it is at the common point.
    CommonForgetsToRenounce,
    /// The next run does not know what is prepared.
    CommonForgetsPrepared,

    // Staleness.

    /// The bound of staleness counts for nothing.
    StalenessIgnored,
    /// A bound of staleness in bytes counts for nothing.
    StalenessByAgeAlone,
    /// The backing is told to lack nothing.
    StalenessUntold,
    /// Writers who wait for their turn in the order are never told that it has come.
    PacesForGood,

    // The throttle.

    /// Once it is known how fast room comes, writers who are held back are never let go.
    ThrottleNeverReleases,

    // Requests.

    /// A block that is written in part is put together without keeping other writers out.
    StaleBase,
    /// Parts that wait for a block are not woken when it becomes free.
    ForgetsWaiters,
    /// The tail of a partly written block comes from nowhere.
    ForgetsRestOfBlock,

    // Reads.

    /// What a read of the cache brings is not checked.
    ReadsUnchecked,
    /// A read of the backing does not notice that the block was cached meanwhile.
    IgnoresRacingFill,
    /// A block that is marked as lost reads as zeroes.
    ReadsLostAsZeroes,
    /// Of a damaged dirty block the backing's older version is returned.
    ReadsStaleInsteadOfDamaged,
    /// The first cached block of each shard is called a hole.
    StatusForgetsBlock,

    // Bypasses.

    /// A bypass leaves no supersede record.
    DropsSupersede,
    /// A bypass is acknowledged before its supersede record is durable.
    SupersedesVolatile,
    /// A bypass over a dirty block does not make sure that the backing has it durably.
    BypassesVolatile,
    /// Zeroes that go to the backing are acknowledged as durable without a flush.
    ZeroesVolatile,
    /// The index keeps what a bypass has made void.
    BypassKeepsIndex,
    /// A bypass does not wait for a write of the block to the backing that is in flight.
    BypassIgnoresDestage,
    /// The clean stop does not learn which clean copies bypasses made untrue.
    ForgetsUntrueCopies,
    /// A bypass that no flush has covered is not remembered for the next flush.
    ForgetsUnflushedBypass,
    /// A failed flush of the backing is told only to whoever waits for it just then.
    ForgetsFailedFlush,
    /// A failed flush is told to a flush that came before one of the bypasses it lost, and to no other.
    TellsFailedFlushTooEarly,
    /// A failed bypass leaves the clean copy in the index.
    FailedBypassKeepsCopy,

    // Reissues.

    /// The backing write of a reissued bypass does not keep a destage of its blocks waiting.
    ReissueUnlocksBacking,
    /// A reissued bypass is acknowledged at once, without being in the log.
    ReissueSkipsLog,
    /// A reissued bypass forgets what it depends on.
    ReissueForgetsDependence,
    /// A reissued write that lands makes clean whatever version of its blocks is current.
    LandingCleansNewer,

    // The backing's queue.

    /// What nobody waits for is looked at only when something that somebody waits for is queued.
    QueueForgetsNonCritical,
    /// An operation that somebody comes to wait for is lost from the queue.
    PromotionForgets,
    /// An operation that somebody comes to wait for is started a second time, from its old place.
    PromotionStartsTwice,
    /// A scheduler is not told that somebody has come to wait for an operation.
    SchedulerForgetsPromotion,
    /// What nobody waits for does not start as long as anything else waits or is at the backing.
    SchedulerStarvesBackground,
    /// A scheduler is not told that operations have ended.
    SchedulerForgetsEnds,
    /// A scheduler that takes another one's place is not told of what waits.
    ExchangeForgetsWaiting,
    /// More is started than the backing takes: it waits there in a second queue, in the order in which it came.
    QueueStartsTooMany,
    /// A write to the backing that was taken back, as the log has it, is started all the same.
    WithdrawnStarts,
    /// An operation for which somebody came to wait while it was at the backing keeps its slot when it has ended.
    EndedKeepsSlot,

    // Destaging.

    /// A block is clean as soon as it is written to the backing.
    CleanBeforeFlush,
    /// A block is clean although the backing's flush failed.
    IgnoresFailedFlush,
    /// A block is clean although its write to the backing failed.
    IgnoresFailedDestage,
    /// The flush after a destage cleans the block's newest version, whichever was destaged.
    CleansNewerVersion,
    /// A block's lock is given back when its write to the backing is submitted.
    UnlocksEarly,
    /// A run of zeroes takes neighbours along that are not zero.
    MergesIntoZeroes,
    /// What destaging reads from the cache is not checked.
    DestagesUnchecked,
    /// The first block of a run is written in the place of the second.
    DestagesSwapped,
    /// A destage command is answered although blocks overwritten meanwhile are not destaged.
    DestageForgetsOwed,
    /// A destage command is answered before the log says, durably, that what it covers is clean.
    DestageForgetsRecord,

    // Reclaiming.

    /// A segment is used anew before the record that takes it out of the log is durable.
    ReusesTooEarly,
    /// Cleaning a segment loses the dirty flags of its blocks.
    CleaningLosesDirty,
    /// A segment is used anew while it is read.
    ReusesUnderReader,
    /// Clean blocks are copied to the head unchecked.
    CopiesUnchecked,
    /// The mark that a block is lost is dropped with its segment.
    DropsPoison,

    // Recovery.

    /// Clean copies are believed after a crash.
    TrustsCleanAfterCrash,
    /// A torn record is accepted.
    AcceptsTorn,
    /// A record of an earlier lap of the segment is accepted.
    AcceptsEarlierLap,
    /// A record of an earlier run, left behind the log's end, is accepted.
    AcceptsEarlierRun,
    /// The last record is not accepted.
    IgnoresLastRecord,
    /// Supersede records are not applied.
    IgnoresSupersede,
    /// Zeroes are not applied.
    IgnoresZeroes,
    /// What was read from the log is not made durable by a flush.
    RecoversVolatile,
    /// The first record of a run has data, where a crash may have left a torn one.
    BeginsWithData,
    /// What the log says is clean is destaged again.
    IgnoresCleanMark,
    /// Whatever a record says is believed if its checksum matches.
    BelievesRecords,
    /// The log ends before a damaged record although later ones prove that it was durable.
    IgnoresProof,
    /// Proof of more is looked for only in the two segments behind the log's end, whatever is known to lie behind them.
    LooksTooNear,
    /// Of segments that are not part of the log any more the records are applied.
    IgnoresTail,

    // Stopping and failing.

    /// A stop does not flush the bypasses that no flush has covered.
    StopsUnflushed,
    /// The mark of a clean stop is not durable.
    StopsVolatile,
    /// A failed write to the cache is acknowledged.
    IgnoresFailedWrite,
    /// A failed flush of the cache is tried again as if it had been the first.
    RetriesFailedFlush,
    /// The log is retired before everything in it is on the backing.
    RetiresEarly,
    /// After the cache has failed, writes do not wait for the log to be retired.
    IgnoresTaint,
    /// That another host has taken the backing over is taken for an error as any other.
    IgnoresFence,
    /// What was decided just before it was known that another host has taken the backing over is answered all the same.
    FenceLetsAnswersGo,
    /// Commands that wait when another host has taken the backing over are never answered.
    FenceForgetsCommands,
}

/// Which mutation an engine, or a part of it, has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Planted {
    #[cfg(feature = "mutations")]
    mutation: Option<Mutation>,
}

#[cfg(feature = "mutations")]
impl Planted {
    /// This one.
    pub(crate) fn of(mutation: Mutation) -> Self {
        Self { mutation: Some(mutation) }
    }

    /// Whether it is this one.
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

#[cfg(not(feature = "mutations"))]
impl Planted {
    /// Whether it is this one: there are none.
    #[inline(always)]
    pub(crate) const fn is(self, _: Mutation) -> bool {
        false
    }
}
