//! The token: a secret of the ranks of a job, by which they authenticate one another.
//!
//! | source, in this order | set by |
//! |---|---|
//! | `OUTBOARD_TOKEN` | the launcher (`outboard run`), or the job's script |
//! | `OUTBOARD_TOKEN_FILE` | users that want another file than the one below |
//! | `$HOME/.outboard/token` | the first rank of the user that needs a token and finds no file |
//!
//! The name of the job is mixed in, so that jobs of one user do not meet by mistake. A file is used only if it is a
//! regular file of this user that no other user may read. No error and no log contains the secret.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blake2::{Blake2s256, Digest};

use crate::bootstrap::environment::{EnvironmentError, Lookup};

/// The variable that holds the secret itself.
pub const TOKEN_VARIABLE: &str = "OUTBOARD_TOKEN";
const FILE_VARIABLE: &str = "OUTBOARD_TOKEN_FILE";
const SECRET_BYTES: usize = 32;
const MAX_SECRET_BYTES: u64 = 4096;
const REMEDY: &str = "set OUTBOARD_TOKEN to the same secret in all ranks of the job, or OUTBOARD_TOKEN_FILE to a file that \
                      only you can read (head -c 32 /dev/urandom > FILE; chmod 600 FILE)";

/// A key that only the ranks of one job know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JobToken(pub(super) [u8; 32]);

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl JobToken {
    /// The token of the job called `job` with this secret.
    pub fn new(secret: &[u8], job: &str) -> JobToken {
        let mut hash = Blake2s256::new();
        hash.update(b"outboard rendezvous");
        hash.update((secret.len() as u64).to_le_bytes());
        hash.update(secret);
        hash.update(job.as_bytes());
        JobToken(hash.finalize().into())
    }

    /// A random secret for one job, as text for `OUTBOARD_TOKEN`.
    ///
    /// # Errors
    /// The kernel's error if it provides no random bytes.
    pub fn draw() -> io::Result<String> {
        Ok(random()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token of the job called `job`, from the variables of the environment.
    pub(crate) fn find(lookup: Lookup<'_>, job: &str) -> Result<JobToken, EnvironmentError> {
        if let Some(secret) = lookup(TOKEN_VARIABLE) {
            return Ok(JobToken::new(secret.as_bytes(), job));
        }
        let wrong = |variable: &str, problem| EnvironmentError { variable: variable.to_owned(), problem };
        if let Some(path) = lookup(FILE_VARIABLE) {
            let read =
                read(Path::new(&path)).map_err(|why| wrong(FILE_VARIABLE, format!("names {path}, which {why}")))?;
            return Ok(JobToken::new(&read, job));
        }
        let unset = |why| wrong(TOKEN_VARIABLE, format!("is not set, and {why}; {REMEDY}"));
        let home = lookup("HOME").ok_or_else(|| unset("neither is HOME, where one could be kept".to_owned()))?;
        let path = PathBuf::from(home).join(".outboard").join("token");
        let secret = read_or_create(&path).map_err(|why| unset(format!("{} {why}", path.display())))?;
        Ok(JobToken::new(&secret, job))
    }
}

fn random() -> io::Result<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let unread = |error: io::Error| format!("cannot be read: {error}");
    let mut options = std::fs::File::options();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).map_err(unread)?;
    let found = file.metadata().map_err(unread)?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err("is no file of this user".to_owned());
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("has mode {:o}, so others may know it; chmod 600 it", found.mode() & 0o777));
    }
    let mut content = Vec::new();
    file.take(MAX_SECRET_BYTES).read_to_end(&mut content).map_err(unread)?;
    if content.is_empty() { Err("is empty".to_owned()) } else { Ok(content) }
}

/// Returns the content of a file, and creates the file if it is missing. If several processes create it, one wins.
fn read_or_create(path: &Path) -> Result<Vec<u8>, String> {
    let cannot_create = |error: io::Error| format!("cannot be made: {error}");
    if !path.exists() {
        let directory = path.parent().expect("a name in a directory");
        match std::fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(cannot_create(error)),
            Ok(()) | Err(_) => {}
        }
        // The name is random, because hosts may share a home and their process numbers may be equal.
        let drawn = JobToken::draw().map_err(cannot_create)?;
        let fresh = directory.join(format!("token.{}", &drawn[..16]));
        let secret = JobToken::draw().map_err(cannot_create)?;
        let written = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&fresh);
        let written = written.and_then(|mut file| file.write_all(secret.as_bytes()).and_then(|()| file.sync_all()));
        // The link appears complete or not at all, and never replaces another file.
        let linked = written.and_then(|()| match std::fs::hard_link(&fresh, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
        let _ = std::fs::remove_file(&fresh);
        linked.map_err(cannot_create)?;
    }
    read(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn found(environment: &[(&str, &str)]) -> Result<JobToken, String> {
        let lookup =
            |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        JobToken::find(&lookup, "job").map_err(|error| error.to_string())
    }

    #[test]
    fn concurrent_ranks_create_one_token_file_and_jobs_differ() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().to_str().unwrap();
        let tokens: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..8).map(|_| scope.spawn(|| found(&[("HOME", home)]))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]));
        assert_eq!(std::fs::read_dir(Path::new(home).join(".outboard")).unwrap().count(), 1, "nothing else stays");
        assert_eq!(found(&[("HOME", home), (TOKEN_VARIABLE, "given")]), Ok(JobToken::new(b"given", "job")));
        assert_ne!(JobToken::new(b"given", "job"), JobToken::new(b"given", "another"));
    }

    #[test]
    fn token_file_open_to_other_users_is_rejected() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("secret");
        let named = path.to_str().unwrap().to_owned();
        let refused = |words: &[&str]| {
            let error_text = found(&[(FILE_VARIABLE, &named)]).unwrap_err();
            words.iter().for_each(|word| assert!(error_text.contains(word), "`{word}` in: {error_text}"));
        };
        refused(&[FILE_VARIABLE, &named, "cannot be read"]);
        std::fs::write(&path, "secret").unwrap();
        for mode in [0o644, 0o640, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            refused(&[&format!("{mode:o}"), "chmod 600"]);
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(found(&[(FILE_VARIABLE, &named)]), Ok(JobToken::new(b"secret", "job")));
        let elsewhere = home.path().join("elsewhere");
        std::fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        refused(&["cannot be read"]);
        let error_text = found(&[]).unwrap_err();
        assert!(
            error_text.contains(TOKEN_VARIABLE) && error_text.contains(FILE_VARIABLE) && error_text.contains("HOME"),
            "{error_text}"
        );
    }
}
