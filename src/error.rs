//! Everything that can go wrong, in one enum with stable codes.

mod code;

use std::path::PathBuf;

use crate::state::{JobName, JobRef, State};

/// A result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong: the message says the act and the object, [`source`](std::error::Error::source) the cause.
///
/// Each variant has a stable [`code`](Error::code), listed there. Serialised, an error is one shape for endpoints and scripts:
/// `{"code", "message", "kind", "key", "retryable"}`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job's key is empty.
    #[error("a job of kind `{kind}` has an empty key: a key is taken from the work itself")]
    KeyRequired {
        /// Kind of the job.
        kind: String,
    },
    /// The key is longer than 512 bytes.
    #[error("the key of a job of kind `{kind}` is {size} bytes long; at most {limit} are kept")]
    KeyTooLong {
        /// Kind of the job.
        kind: String,
        /// Length of the key in bytes.
        size: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// The key holds a NUL.
    #[error("the key of a job of kind `{kind}` holds a NUL character")]
    KeyInvalid {
        /// Kind of the job.
        kind: String,
    },
    /// The kind is empty, longer than 128 bytes, or holds a control character.
    #[error("`{}` cannot be the name of a kind: it must be 1 to 128 bytes without control characters", .kind.escape_debug())]
    KindInvalid {
        /// The name that was refused.
        kind: String,
    },
    /// The payload is over the store's limit.
    #[error("the payload of `{kind}` `{key}` is {size} bytes; this store takes at most {limit}")]
    PayloadTooLarge {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// Size of the payload in bytes.
        size: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// The payload cannot be written as JSON.
    #[error("the payload of `{kind}` `{key}` cannot be serialised")]
    PayloadInvalid {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// What the serialiser said.
        source: Cause,
    },
    /// The key exists with other content. Nothing was changed.
    #[error("`{kind}` `{key}` exists with other content (job {}, {})", .existing.id, .existing.state)]
    KeyReused {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// The job that has the key.
        existing: JobRef,
    },
    /// The job is running elsewhere.
    #[error("`{kind}` `{key}` is running elsewhere (job {id})")]
    InProgress {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// The running job.
        id: i64,
    },
    /// [`Store::once`](crate::Store::once) was called for a job that was enqueued for runners.
    #[error("`{kind}` `{key}` was enqueued for runners and is {} (job {}); `once` does not run it", .existing.state, .existing.id)]
    NotForCallers {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// The job that has the key.
        existing: JobRef,
    },
    /// The closure of [`Store::once`](crate::Store::once) failed. The attempt is on record.
    #[error("`{kind}` `{key}` failed as {class} in attempt {attempt}: {text}")]
    Failed {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// Class of the failure.
        class: String,
        /// What the closure said.
        text: String,
        /// Number of the attempt.
        attempt: u32,
        /// Whether the next `once` may run it again.
        retryable: bool,
    },
    /// The job gave up. This is its stored error.
    #[error("`{kind}` `{key}` is dead ({class}): {text}")]
    Dead {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// Class of its last failure.
        class: String,
        /// Text of its last failure.
        text: String,
    },
    /// The job was cancelled.
    #[error("`{kind}` `{key}` was cancelled")]
    Cancelled {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
    },
    /// The job waits for a person or a signal.
    #[error("`{kind}` `{key}` is parked: {reason}")]
    Parked {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// What it waits for.
        reason: String,
    },
    /// The job is done and its output was never stored or has been retired.
    #[error("`{kind}` `{key}` is done; its output is not stored ({note})")]
    ResultGone {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// Why: `too_large`, `unserialisable` or `retired`.
        note: String,
    },
    /// The job is done and its stored output does not decode as the type asked for.
    #[error("`{kind}` `{key}` is done; its stored output does not decode")]
    ResultUnreadable {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// What the deserialiser said.
        source: Cause,
    },
    /// The job's lease belongs to somebody else, or to nobody. Nothing was written.
    #[error("`{kind}` `{key}` is no longer this worker's: its lease was lost, nothing was written")]
    LeaseLost {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
    },
    /// The job is to correct one that the file does not know. Nothing was stored.
    #[error("`{kind}` `{key}` was to correct {corrected}, which is not in the file; nothing was stored")]
    NothingToCorrect {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// What it was to correct.
        corrected: JobName,
    },
    /// The name of a step cannot be one.
    #[error("`{kind}` `{key}`: a step's name is 1 to 128 bytes without control characters, not {step:?}")]
    StepInvalid {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// The name, cut.
        step: String,
    },
    /// The attempt has made a step of this name already.
    #[error("`{kind}` `{key}` makes the step `{step}` twice: names of steps are unique within a job")]
    StepRepeated {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// The step.
        step: String,
    },
    /// The stored output of a step does not decode as the type asked for. The step was not run again.
    #[error("`{kind}` `{key}`: the stored output of the step `{step}` does not decode; it was not run again")]
    StepUnreadable {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// The step.
        step: String,
        /// What the deserialiser said.
        source: Cause,
    },
    /// A step has run, and its output cannot be stored.
    #[error("`{kind}` `{key}`: the step `{step}` has run and its output cannot be stored ({note})")]
    StepNotStored {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// The step.
        step: String,
        /// Why: `too_large`, `unserialisable`, or `unreadable` (what it serialises to does not decode again, such as NaN).
        note: &'static str,
    },
    /// A replay would reach further than it says.
    #[error("nothing is replayed: {cause}")]
    ReplayRefused {
        /// Why, and what to say instead.
        cause: String,
    },
    /// There is no such job.
    #[error("there is no {job}")]
    NoSuchJob {
        /// The job that was named: `job 17`, or its kind and key.
        job: String,
    },
    /// There is no such schedule.
    #[error("there is no schedule `{name}`")]
    NoSuchSchedule {
        /// The name that was asked for.
        name: String,
    },
    /// What was asked for does not apply to a job in this state.
    #[error("{act} does not apply to `{kind}` `{key}`, which is {state}")]
    WrongState {
        /// What was to be done.
        act: &'static str,
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
        /// Its state.
        state: State,
    },
    /// Jobs of unknown outcome are not released in bulk.
    #[error("jobs parked as unknown_outcome are decided one by one: call store.resolve with each")]
    MustResolve,
    /// The attempt has been settled already.
    #[error("`{kind}` `{key}` is settled already: an attempt commits once")]
    AlreadySettled {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
    },
    /// The value given to `commit` is not of the job's `Output` type.
    #[error("`{kind}` `{key}` was to be committed with a value that is not its Output type; nothing was written")]
    OutputMismatch {
        /// Kind of the job.
        kind: String,
        /// Key of the job.
        key: String,
    },
    /// A writing call was made inside a closure that already holds the transaction.
    #[error("{act} inside a transaction closure would wait for itself: call {instead}")]
    InsideTransaction {
        /// The call that was refused.
        act: &'static str,
        /// What to call.
        instead: &'static str,
    },
    /// A closure ended the transaction that it was given.
    #[error("the closure of {act} ended the transaction that it was given; it must leave it open")]
    TransactionEnded {
        /// The call that ran the closure.
        act: &'static str,
    },
    /// Another connection held the writer lock for the whole busy deadline.
    #[error(
        "{act} waited {waited_ms} ms for the writer lock and gave up, nothing was stored: another connection holds it \
         (if it is this thread's own transaction, call enqueue_in with it)"
    )]
    Busy {
        /// What was to be done.
        act: &'static str,
        /// How long it waited.
        waited_ms: u64,
    },
    /// The transaction has read, and another connection has written since, so that it can never write.
    #[error(
        "{act}: this transaction has read and another connection has written since, so that it can write nothing; roll it \
         back and run it again, begun with IMMEDIATE (store.write does so)"
    )]
    StaleTransaction {
        /// What was to be done.
        act: &'static str,
    },
    /// The disk, or the file's share of it, is full. Nothing was stored.
    #[error("{act}: the disk is full, nothing was stored")]
    DiskFull {
        /// What was to be done.
        act: &'static str,
    },
    /// COMMIT failed, so that nobody knows whether it was stored. Repeating under the same key is safe.
    #[error("{act}: COMMIT failed ({cause}), so the outcome is unknown; repeating it under its key is safe")]
    OutcomeUnknown {
        /// What was to be done.
        act: &'static str,
        /// What SQLite said.
        cause: String,
    },
    /// A closure held the writer lock for too long and was interrupted. Nothing was stored.
    #[error("{act} held the writer lock for over {held_ms} ms and was interrupted, nothing was stored")]
    Interrupted {
        /// What was to be done.
        act: &'static str,
        /// How long it had held the lock.
        held_ms: u64,
    },
    /// The closure of a transaction returned an error. What it wrote is rolled back.
    #[error("the closure of {act} failed, nothing was stored")]
    Closure {
        /// The call that ran the closure.
        act: &'static str,
        /// What the closure returned.
        source: Cause,
    },
    /// The file exists and is not in WAL mode.
    #[error(
        "{} is in journal mode `{mode}`; birkez needs WAL: open it with Store::builder(path).switch_to_wal(), or let the \
         app run `PRAGMA journal_mode = WAL` once", .path.display()
    )]
    NotWal {
        /// The file.
        path: PathBuf,
        /// The mode it is in.
        mode: String,
    },
    /// The file is not an SQLite database.
    #[error("{} is not an SQLite database: give birkez a database file or a path where none is yet", .path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// A transaction of another file was given.
    #[error("enqueue_in was given a transaction of `{other}`, and this store's file is {}", .path.display())]
    OtherFile {
        /// The store's file.
        path: PathBuf,
        /// The file of the transaction; empty for one in memory.
        other: String,
    },
    /// The path is not one of a regular file.
    #[error("{} is not a regular file: give the path of a database file", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// SQLite found the file damaged. birkez never repairs or recreates a file by itself.
    #[error("{} is damaged ({cause}): put back a backup, or salvage it with sqlite3's .recover", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        cause: String,
    },
    /// The file or its folder cannot be written.
    #[error("{} cannot be written ({cause}): give this user write access to the file and its folder", .path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// The file was written by a birkez that this one must not write beside.
    #[error(
        "{} has schema version {found} and may be written only by programs that know version {oldest_writer}; this one \
         knows {known}: update the program", .path.display()
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: i64,
        /// The oldest version that may write to it.
        oldest_writer: i64,
        /// Version of this program.
        known: i64,
    },
    /// A table of the file has the name of one of birkez's and is not it.
    #[error("{} has a table `{table}` that is not birkez's: move it out of the way", .path.display())]
    ForeignSchema {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
    },
    /// The SQLite that this program is linked with can lose committed data (the WAL-reset fault).
    #[error(
        "this program is linked with SQLite {version}, which can lose committed data when a WAL file is reset: link \
         3.51.3 or later (3.50.7 and 3.44.6 have the fix too), or accept the risk with Store::builder(path).accept_engine()"
    )]
    EngineTooOld {
        /// Version of the engine.
        version: String,
    },
    /// Two handlers were given for one kind.
    #[error("kind `{kind}` was given two handlers")]
    DuplicateKind {
        /// The kind, under its own or a former name.
        kind: String,
    },
    /// A runner was given more kinds than one claim can ask for.
    #[error("a runner can handle at most {limit} kinds, former names included; this one was given {given}")]
    TooManyKinds {
        /// How many were given.
        given: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// A schedule's name, calendar or zone is wrong, or what was asked of it cannot be.
    #[error("schedule `{name}` {verdict}")]
    ScheduleInvalid {
        /// Name of the schedule.
        name: String,
        /// What of it cannot be, such as `cannot be registered`.
        verdict: String,
        /// What is wrong.
        source: Cause,
    },
    /// A setting of a webhook is wrong. The message does not repeat it: it may be a secret.
    #[error("a webhook's {setting} cannot be used")]
    WebhookInvalid {
        /// Which one.
        setting: &'static str,
        /// What is wrong.
        source: Cause,
    },
    /// A job that is to tell of deaths or missed occurrences does not hold what it is given.
    #[error("the notices of kind `{kind}` cannot be used")]
    NoticeInvalid {
        /// The kind.
        kind: String,
        /// What is wrong.
        source: Cause,
    },
    /// The runner has ended.
    #[error("{act}: the runner has ended")]
    Stopped {
        /// What was to be done.
        act: &'static str,
    },
    /// The system refused something.
    #[error("{act} {}", .path.display())]
    Io {
        /// What was to be done.
        act: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// SQLite refused something. Nothing was stored.
    #[error("{act}: SQLite refused, nothing was stored")]
    Storage {
        /// What was to be done.
        act: &'static str,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}
