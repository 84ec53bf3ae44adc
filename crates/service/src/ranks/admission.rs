//! Admission: only processes of the service process's own user may attach.
//!
//! The kernel reports the user of a process (`SO_PEERCRED`) as it was when the process connected. A rank's own claims
//! are never used.

use std::sync::OnceLock;

/// Default number that the kernel reports for users whom a user namespace does not know.
const OVERFLOW_USER: u32 = 65_534;

/// Whether a process of `user` may attach to a service process that runs as user `own`.
///
/// # Errors
/// The reason of the refusal.
pub fn admit(own: u32, user: u32) -> Result<(), String> {
    static UNKNOWN: OnceLock<Option<u32>> = OnceLock::new();
    allow(own, user, *UNKNOWN.get_or_init(unknown_user))
}

fn allow(own: u32, user: u32, unknown: Option<u32>) -> Result<(), String> {
    if user == own && unknown != Some(user) {
        return Ok(());
    }
    Err(format!(
        "user {user} may not attach to this service process, which serves user {own} alone; start your own by \
         `systemctl --user start outboardd.socket` or `outboardd`, or unset OUTBOARD_SOCKET and the job starts one"
    ))
}

/// The number that stands for users from outside of this process's user namespace; `None` if all users are known.
fn unknown_user() -> Option<u32> {
    let known = std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| knows_all(&map));
    let number = || std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok();
    (!known).then(|| number().unwrap_or(OVERFLOW_USER))
}

/// Whether a namespace with this map knows all users: all numbers except the one that means "no user".
fn knows_all(map: &str) -> bool {
    map.lines().filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>()
        >= u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_user_is_admitted_and_root_and_others_are_not() {
        let admitted = [100, 0, 1000].map(|user| allow(100, user, Some(65_534)).is_ok());
        assert_eq!(admitted, [true, false, false]);
        let refused = allow(100, 0, None).expect_err("another user");
        assert!(refused.contains("user 0 ") && refused.contains("user 100 ") && refused.contains("outboardd.socket"));
    }

    #[test]
    fn a_user_that_the_namespace_does_not_know_is_no_user_of_that_number() {
        assert!(allow(65_534, 65_534, Some(65_534)).is_err());
        assert!(allow(65_534, 65_534, None).is_ok());
        assert!(knows_all("         0          0 4294967295\n"));
        assert!(!knows_all("         0       1000          1\n         1     100000      65536\n"));
    }
}
