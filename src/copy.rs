//! Copies of the file: made while it is in use, put in place, and held until a person releases them.
//!
//! A copy carries a mark (`birkez_version.copied_at`). Whoever first opens a file with that mark as a store knows that it is
//! older than what has happened: it is a new generation, and nothing in it runs by itself any more.

mod backup;
mod part;
mod restore;

pub use self::backup::BackupInfo;
pub use self::restore::RestoreInfo;
pub(crate) use self::restore::{arrive, is_copy};

/// What a job is parked for, and who has paused a schedule, in a file that was restored.
pub(crate) const RESTORED: &str = "restored";
