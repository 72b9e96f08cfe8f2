//! A file in the making: written in a folder beside its place, and moved there when it is whole.

use std::fs::File;
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
        if lock.try_lock().is_err() {
            return Err(Error::Busy { act, waited_ms: 0 });
        }
        let file = folder.join(format!("{:016x}.db", fastrand::u64(..)));
        let part = Part { target, folder, file, lock: Some(lock) };
        part.clear();
        platform::create_private_file(&part.file).map_err(io(&part.file))?;
        Ok(part)
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Moves the whole file to its place, unless something has come there.
    pub(super) fn finish(self, act: &'static str) -> Result<PathBuf> {
        let io = |source| Error::Io { act, path: self.target.clone(), source };
        move_to(&self.file, &self.target).map_err(io)?;
        if let Some(folder) = self.target.parent() {
            platform::sync_folder(folder).map_err(io)?;
        }
        Ok(self.target.clone())
    }

    /// Removes all but the lock.
    fn clear(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_name() != "lock") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.clear();
        let _ = std::fs::remove_file(self.folder.join("lock"));
        drop(self.lock.take());
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// A link fails where something is; a rename would replace it.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::hard_link(from, to) {
        Ok(()) => std::fs::remove_file(from),
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
