//! Records of detached labs: one JSON file per name, in a directory that only the user can access.
//!
//! A recorded process counts as the lab's only if its id and start time agree. So a reused process id never passes for
//! a lab.

use crate::LabError;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A detached lab.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LabState {
    /// The switch process.
    pub(crate) pid: i32,
    /// Start time of the process, in clock ticks after the machine's start.
    pub(crate) start_time: u64,
}

impl LabState {
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, start_time: start_time(pid)? })
    }

    fn is_current(&self) -> bool {
        start_time(self.pid).is_ok_and(|start| start == self.start_time)
    }
}

/// Reads field 22 of proc_pid_stat(5). A zombie counts as ended.
fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut fields = fields.split(' ');
    if fields.next() == Some("Z") {
        return Err(io::ErrorKind::NotFound.into());
    }
    fields.nth(18).and_then(|field| field.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The user's directory of detached labs, locked against other commands that start or end labs.
pub(crate) struct Registry {
    dir: PathBuf,
    _lock: File,
}

impl Registry {
    /// Opens the directory, and creates it if it is missing.
    pub(crate) fn open() -> Result<Self, LabError> {
        let dir = directory();
        let failed = |source| LabError::State { path: dir.clone(), source };
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        let metadata = fs::symlink_metadata(&dir).map_err(failed)?;
        if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(failed(io::Error::other("it is not a directory that you alone can use")));
        }
        let lock = File::create(dir.join("lock")).map_err(failed)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
            .map_err(|e| failed(e.into()))?;
        Ok(Self { dir, _lock: lock })
    }

    /// The lab called `name`, if it runs. Removes the file of a lab that has ended.
    pub(crate) fn find(&self, name: &str) -> Result<Option<LabState>, LabError> {
        let path = self.file(name)?;
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LabError::State { path, source }),
        };
        // A file that a killed command wrote in part names no lab.
        match serde_json::from_slice::<LabState>(&text) {
            Ok(state) if state.is_current() => Ok(Some(state)),
            _ => self.remove(name).map(|()| None),
        }
    }

    /// Every running lab, by name.
    pub(crate) fn all(&self) -> Result<Vec<(String, LabState)>, LabError> {
        let failed = |source| LabError::State { path: self.dir.clone(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let file_name = entry.map_err(failed)?.file_name();
            let Some(name) = file_name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            found.extend(self.find(name)?.map(|state| (name.to_owned(), state)));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    pub(crate) fn save(&self, name: &str, state: &LabState) -> Result<(), LabError> {
        let path = self.file(name)?;
        let text = serde_json::to_vec(state).map_err(io::Error::from);
        text.and_then(|text| fs::write(&path, text)).map_err(|source| LabError::State { path, source })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), LabError> {
        let path = self.file(name)?;
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(LabError::State { path, source }),
            _ => Ok(()),
        }
    }

    fn file(&self, name: &str) -> Result<PathBuf, LabError> {
        let proper = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(proper) {
            return Err(LabError::Name { name: name.to_owned() });
        }
        Ok(self.dir.join(format!("{name}.json")))
    }
}

/// `$XDG_RUNTIME_DIR/outboard-lab`; if unset, `/run/outboard-lab` for root and a directory in `/tmp` for others.
fn directory() -> PathBuf {
    let uid = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_dir()) {
        Some(dir) => dir.join("outboard-lab"),
        None if uid.is_root() => Path::new("/run/outboard-lab").to_owned(),
        None => std::env::temp_dir().join(format!("outboard-lab-{}", uid.as_raw())),
    }
}
