//! The order of preloaded libraries: sanitizers, Outboard's libraries, then the user's others.
//!
//! A sanitizer's run-time library ends a program in which another library comes before it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::program::is_sanitizer;

/// The variable of the dynamic loader.
pub(super) const VARIABLE: &str = "LD_PRELOAD";
/// File names of Outboard's own libraries that are preloaded.
const OWN: [&str; 2] = ["liboutboard-mpi.so", "liboutboard_heap.so"];

/// The value of the variable for a program that is linked to `sanitizers`. `users` is the variable in the environment
/// of `outboard run`, `ours` the list of Outboard's libraries. Libraries of Outboard among the user's are left out,
/// because the job has its own, or none with `--native`.
pub(super) fn in_order(sanitizers: &[PathBuf], users: &str, ours: &str) -> String {
    let list = |text: &str| -> Vec<PathBuf> {
        text.split([':', ' ', '\n', '\t']).filter(|name| !name.is_empty()).map(PathBuf::from).collect()
    };
    let is_own = |library: &PathBuf| OWN.iter().any(|name| library.file_name().is_some_and(|file| file == *name));
    let (first, others): (Vec<PathBuf>, Vec<PathBuf>) =
        list(users).into_iter().filter(|library| !is_own(library)).partition(|library| is_sanitizer(library));
    let ours = list(ours);
    // Nothing of ours precedes the program's sanitizer, so the program loads it as if nothing were there.
    let linked = if ours.is_empty() { &[] } else { sanitizers };
    let mut seen = BTreeSet::new();
    let name = |library: &Path| library.file_name().unwrap_or_default().to_owned();
    let all = first.into_iter().chain(linked.iter().cloned()).chain(ours).chain(others);
    let once: Vec<String> =
        all.filter(|library| seen.insert(name(library))).map(|library| library.display().to_string()).collect();
    once.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitizers_precede_ours_and_the_user_s_others_follow() {
        let order =
            |linked: &[&str], users, ours| in_order(&linked.iter().map(PathBuf::from).collect::<Vec<_>>(), users, ours);
        let shim = "/home/liboutboard-mpi.so";
        assert_eq!(order(&[], "/u/libuser.so libasan.so.8", shim), format!("libasan.so.8:{shim}:/u/libuser.so"));
        assert_eq!(order(&["/lib/libasan.so.8"], "", shim), format!("/lib/libasan.so.8:{shim}"));
        assert_eq!(order(&["/lib/libasan.so.8"], "libasan.so.8", shim), format!("libasan.so.8:{shim}"));
        assert_eq!(order(&["/lib/libasan.so.8"], "/u/libuser.so", ""), "/u/libuser.so");
        assert_eq!(order(&[], "/elsewhere/liboutboard-mpi.so:/u/libuser.so", ""), "/u/libuser.so");
        assert_eq!(order(&[], "/elsewhere/liboutboard-mpi.so", shim), shim);
    }
}
