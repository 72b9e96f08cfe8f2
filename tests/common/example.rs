//! The built examples, found beside the test binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// The program of an example. `cargo test` has built it; a run of one test file alone may find it missing or old, and
/// builds it.
pub fn example(name: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let program = profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let built = std::fs::metadata(&program).and_then(|found| found.modified()).ok();
    if built.is_none_or(|built| built < newest_source(name)) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--example", name, "--target-dir"]).arg(profile.parent().unwrap());
        cargo.args(profile.ends_with("release").then_some("--release"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "the example {name} does not build");
    }
    program
}

fn newest_source(name: &str) -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = root.join("examples").join(name);
    let own = if own.is_dir() { own } else { own.with_extension("rs") };
    let (mut left, mut newest) = (vec![root.join("src"), own], SystemTime::UNIX_EPOCH);
    while let Some(path) = left.pop() {
        match path.is_dir() {
            true => left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path())),
            false => newest = newest.max(std::fs::metadata(path).unwrap().modified().unwrap()),
        }
    }
    newest
}
