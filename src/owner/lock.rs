//! The lock file of an owner: held for as long as its process lives.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::platform;

/// A held lock file.
pub(super) struct LockFile {
    path: PathBuf,
    /// Never read: the system frees the lock when it is closed.
    _held: File,
}

impl LockFile {
    pub(super) fn create(folder: &Path, uuid: &str) -> io::Result<LockFile> {
        let path = path(folder, uuid);
        let file = make(folder, &path)?;
        match file.try_lock() {
            Ok(()) => Ok(LockFile { path, _held: file }),
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                Err(error.into())
            }
        }
    }

    /// Removes the file while the lock is still held. The folder goes with its last file.
    pub(super) fn remove(&self) {
        remove(&self.path);
    }
}

/// Another owner that ends may remove the folder between its making and the file's.
fn make(folder: &Path, path: &Path) -> io::Result<File> {
    let mut tries = 0;
    loop {
        platform::create_private_folder(folder)?;
        match platform::create_private_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 100 => tries += 1,
            other => return other,
        }
    }
}

/// What trying an owner's lock told.
pub(super) enum Tried {
    /// Its process is gone. The lock is held now, until this is dropped.
    Free(FreeLock),
    Held,
    /// No such file, or it cannot be tried: this tells nothing.
    Unknown,
}

/// The lock of an owner that is gone, held by whoever takes back its jobs.
pub(crate) struct FreeLock {
    path: PathBuf,
    _held: File,
}

impl FreeLock {
    pub(super) fn remove(&self) {
        remove(&self.path);
    }
}

pub(super) fn try_lock(folder: &Path, uuid: &str) -> Tried {
    let path = path(folder, uuid);
    let Ok(file) = File::options().read(true).write(true).open(&path) else { return Tried::Unknown };
    match file.try_lock() {
        Ok(()) => Tried::Free(FreeLock { path, _held: file }),
        Err(TryLockError::WouldBlock) => Tried::Held,
        Err(TryLockError::Error(_)) => Tried::Unknown,
    }
}

fn path(folder: &Path, uuid: &str) -> PathBuf {
    folder.join(format!("{uuid}.lock"))
}

fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
    if let Some(folder) = path.parent() {
        let _ = std::fs::remove_dir(folder);
    }
}
