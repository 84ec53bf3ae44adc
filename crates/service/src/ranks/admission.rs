//! Which users' ranks may attach.
//!
//! The service process's own user and root may; others where the mode of the socket lets them connect, or where
//! `--allow-uid` names users, those alone. The user of a process is the kernel's word (`SO_PEERCRED`), as it was when the
//! process connected. Never asks what a rank says of itself.

use crate::settings::Settings;

/// Bits of a socket's mode that let others than its owner connect.
const OTHERS_CONNECT: u32 = 0o022;

/// Which users' ranks may attach to one service process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    own: u32,
    others: Others,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Others {
    Nobody,
    WhoeverConnects,
    These(Vec<u32>),
}

impl Admission {
    /// For a service process that runs as user `own`.
    pub fn new(settings: &Settings, own: u32) -> Admission {
        let others = if !settings.allow_uid.is_empty() {
            Others::These(settings.allow_uid.clone())
        } else if settings.socket_mode & OTHERS_CONNECT != 0 {
            Others::WhoeverConnects
        } else {
            Others::Nobody
        };
        Admission { own, others }
    }

    /// Whether a process of this user may attach.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, user: u32) -> Result<(), String> {
        let admitted = match &self.others {
            _ if user == self.own || user == 0 => true,
            Others::Nobody => false,
            Others::WhoeverConnects => true,
            Others::These(users) => users.contains(&user),
        };
        if admitted {
            return Ok(());
        }
        Err(format!(
            "user {user} may not attach to this service process of user {}; its --allow-uid names who may, or its \
             --socket-mode lets a group connect",
            self.own
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::parse;

    fn admitted(words: &[&str]) -> [bool; 4] {
        let words = [&["outboardd"], words].concat();
        let admission = Admission::new(&parse(&words).0, 100);
        [100, 0, 1000, 1001].map(|user| admission.check(user).is_ok())
    }

    #[test]
    fn the_mode_of_the_socket_or_the_list_says_who_may_attach() {
        assert_eq!(admitted(&[]), [true, true, false, false]);
        assert_eq!(admitted(&["--socket-mode", "660"]), [true; 4]);
        assert_eq!(admitted(&["--allow-uid", "1000,7"]), [true, true, true, false]);
        assert_eq!(admitted(&["--socket-mode", "666", "--allow-uid", "1000"]), [true, true, true, false]);
    }
}
