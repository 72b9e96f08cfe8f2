//! A file in the making: written in a folder beside its place, and moved there when it is whole.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::platform;

/// The folder `<target>.part`, held by a lock: what a process that died has left in it is removed by the next.
pub(super) struct Part {
    target: PathBuf,
    folder: PathBuf,
    /// Its name is of chance, so that even two who both think they hold the folder write to different files.
    file: PathBuf,
    /// Held open until nobody uses the file any more.
    handle: File,
    lock: Option<File>,
}

impl Part {
    /// # Errors
    ///
    /// [`Error::Io`]: something is at `target` already (`AlreadyExists`), or its folder cannot be written;
    /// [`Error::Busy`] while somebody else writes to the same target.
    pub(super) fn begin(act: &'static str, target: &Path) -> Result<Part> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { act, path, source }
        };
        let target = std::path::absolute(target).map_err(io(target))?;
        for taken in [target.clone(), beside(&target, "-wal"), beside(&target, "-journal")] {
            // A log that was left behind would be read as the new file's.
            if std::fs::symlink_metadata(&taken).is_ok() {
                return Err(io(&taken)(ErrorKind::AlreadyExists.into()));
            }
        }
        let folder = beside(&target, ".part");
        platform::create_private_folder(&folder).map_err(io(&folder))?;
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"));
        let lock = lock.map_err(io(&folder))?;
        let lock = match lock.try_lock() {
            Ok(()) => Some(lock),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { act, waited_ms: 0 }),
            // A file system without locks: nobody can tell who else is at it, so nothing of theirs is touched.
            Err(TryLockError::Error(_)) => None,
        };
        let file = folder.join(format!("{:016x}.db", fastrand::u64(..)));
        clear(&folder, lock.is_some());
        let handle = platform::create_private_file(&file).map_err(io(&file))?;
        Ok(Part { target, folder, file, handle, lock })
    }

    /// Sends to the disk what was written by now: at the end it would be so much at once that everybody else's syncs wait
    /// for it.
    pub(super) fn sync(&self) {
        let _ = self.handle.sync_data();
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Moves the whole file to its place, unless something has come there.
    pub(super) fn finish(self, act: &'static str) -> Result<PathBuf> {
        let io = |source| Error::Io { act, path: self.target.clone(), source };
        move_to(&self.file, &self.target).map_err(io)?;
        if let Some(Err(error)) = self.target.parent().map(platform::sync_folder) {
            let _ = std::fs::remove_file(&self.target);
            return Err(io(error));
        }
        Ok(self.target.clone())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        clear(&self.folder, self.lock.is_some());
        if let Some(_held) = self.lock.take() {
            let _ = std::fs::remove_file(self.folder.join("lock"));
        }
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Removes what others have left, by whoever holds the lock.
fn clear(folder: &Path, locked: bool) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| locked && entry.file_name() != "lock") {
        let _ = std::fs::remove_file(entry.path());
    }
}

/// A link fails where something is; a rename would replace it.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::hard_link(from, to) {
        // Its first name goes with the folder.
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // A file system without links, such as a stick's.
        Err(_) if std::fs::symlink_metadata(to).is_ok() => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => std::fs::rename(from, to),
    }
}

fn beside(target: &Path, suffix: &str) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
