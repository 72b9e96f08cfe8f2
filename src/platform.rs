//! What differs between operating systems, and nothing else.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// Creates an empty file that only its owner can read and write; fails if it exists.
///
/// Made before SQLite opens it, since SQLite gives the `-wal` and `-shm` files the mode of the database file.
pub(crate) fn create_private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Creates a folder that only its owner can enter, unless it is there.
pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

/// Makes lasting what was created, moved or removed in a folder, where the system has a call for that.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    match File::open(path)?.sync_all() {
        // Not every file system knows what that would be for a folder.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {}
        synced => synced?,
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// What tells one boot of the machine from the next, where the system says.
pub(crate) fn boot_id() -> Option<String> {
    #[cfg(target_os = "linux")]
    {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(id.trim().to_owned()).filter(|id| !id.is_empty())
    }
    #[cfg(target_os = "macos")]
    {
        let out = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "kern.bootsessionuuid"]).output().ok()?;
        Some(String::from_utf8(out.stdout).ok()?.trim().to_owned()).filter(|id| !id.is_empty())
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    None
}

/// Name of the machine, for people.
pub(crate) fn host_name() -> String {
    #[cfg(target_os = "linux")]
    if let Ok(name) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        return name.trim().to_owned();
    }
    ["HOSTNAME", "COMPUTERNAME"].into_iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default()
}

/// Name of the program, for people.
pub(crate) fn program_name() -> String {
    let path = std::env::current_exe().ok();
    path.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
