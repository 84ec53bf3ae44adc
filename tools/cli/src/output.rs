//! Files that commands write. Their paths are checked with the command line, before any work begins.
//!
//! Never creates or changes a file.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::error::CliError;

/// The parser of an argument that names a file to write.
pub(crate) fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| check(&path).map(|()| path))
}

/// Whether the MPI shim may write its report.
pub(crate) fn check_report(path: &Path) -> Result<(), CliError> {
    if path.as_os_str().is_empty() || path == Path::new("stderr") {
        return Ok(());
    }
    check(path).map_err(|reason| CliError::Failed(format!("OUTBOARD_MPI_REPORT names {}: {reason}", path.display())))
}

/// Whether a command may write `path`: a file that may be written, or none in a directory that may be written.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err("it is a directory; name a file".to_owned());
    }
    let allowed = |path: &Path, wanted| {
        access(path, wanted).map_err(|errno| match errno {
            Errno::NOENT => format!("there is no directory {}; make it, or name another", path.display()),
            errno => format!("{} cannot be written: {errno}; name another file", path.display()),
        })
    };
    if path.exists() {
        return allowed(path, Access::WRITE_OK);
    }
    let parent = path.parent().ok_or("it names no file")?;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match parent.metadata() {
        Ok(found) if !found.is_dir() => Err(format!("{} is no directory; name another", parent.display())),
        Ok(_) | Err(_) => allowed(parent, Access::WRITE_OK | Access::EXEC_OK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_cannot_be_written_is_rejected_with_its_reason() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "kept").expect("written");
        for good in [path("new"), path("file"), "/dev/null".into(), "new-file-in-the-current-directory".into()] {
            assert_eq!(check(&good), Ok(()), "{}", good.display());
        }
        assert!(!path("new").exists(), "checking creates no file");
        assert_eq!(std::fs::read(path("file")).expect("there"), b"kept");
        for (bad, reason) in [
            (directory.path().to_owned(), "is a directory"),
            (path("missing/file"), "there is no directory"),
            (path("file/below"), "is no directory"),
            ("".into(), "names no file"),
        ] {
            let refused = check(&bad).expect_err("it cannot be written");
            assert!(refused.contains(reason), "{}: {refused}", bad.display());
        }
    }
}
