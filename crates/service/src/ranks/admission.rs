//! Which users' ranks may attach.
//!
//! The service process's own user and root may; others where the mode of the socket lets them connect, or where
//! `--allow-uid` names users, those alone. The user of a process is the kernel's word (`SO_PEERCRED`), as it was when
//! the process connected. Never asks what a rank says of itself.

use crate::settings::Settings;

/// Bits of a socket's mode that let others than its owner connect.
const OTHERS_CONNECT: u32 = 0o022;

/// Whether a process of `user` may attach to a service process that runs as user `own`.
///
/// # Errors
/// Why not.
pub fn admit(settings: &Settings, own: u32, user: u32) -> Result<(), String> {
    let named = &settings.allow_uid;
    let invited = if named.is_empty() { settings.socket_mode & OTHERS_CONNECT != 0 } else { named.contains(&user) };
    if invited || user == own || user == 0 {
        return Ok(());
    }
    Err(format!(
        "user {user} may not attach to this service process of user {own}; its --allow-uid names who may, or its \
         --socket-mode lets a group connect"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::parse;

    fn admitted(words: &[&str]) -> [bool; 4] {
        let settings = parse(&[&["outboardd"], words].concat()).0;
        [100, 0, 1000, 1001].map(|user| admit(&settings, 100, user).is_ok())
    }

    #[test]
    fn the_mode_of_the_socket_or_the_list_says_who_may_attach() {
        assert_eq!(admitted(&[]), [true, true, false, false]);
        assert_eq!(admitted(&["--socket-mode", "660"]), [true; 4]);
        assert_eq!(admitted(&["--allow-uid", "1000,7"]), [true, true, true, false]);
        assert_eq!(admitted(&["--socket-mode", "666", "--allow-uid", "1000"]), [true, true, true, false]);
    }
}
