//! The user whose ranks may attach: the service process's own.
//!
//! The kernel names the user of a process (`SO_PEERCRED`), as it was when the process connected. Any other user is
//! refused before the service process reads a byte of the connection.

use outboard_shm::attach::Channel;
use outboard_shm::status::Status;

use crate::conductor::tell;

/// Returns the connection if its process belongs to the user of this process; refuses and closes any other.
#[must_use]
pub fn admit(channel: Channel) -> Option<Channel> {
    let refused = match channel.peer() {
        Ok(peer) => refusal(rustix::process::geteuid().as_raw(), peer.uid),
        Err(errno) => Some(format!("the kernel does not name the process that connects: {errno}")),
    };
    let Some(text) = refused else { return Some(channel) };
    tracing::debug!(text, "a process may not attach");
    tell(&channel, Status::NoService, text);
    None
}

/// The sentence that refuses a process of `user` at a service process of user `own`.
fn refusal(own: u32, user: u32) -> Option<String> {
    (user != own).then(|| {
        format!(
            "this service process serves user {own} alone, and user {user} has asked; start one as user {user} \\
             (`outboardd --socket PATH`, and OUTBOARD_SOCKET=PATH for its ranks), or leave OUTBOARD_SOCKET unset"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_is_refused_and_root_is_one() {
        assert_eq!(refusal(1000, 1000), None);
        for user in [0, 1001, 65_534] {
            let refused = refusal(1000, user).expect("another user");
            assert!(refused.contains(&format!("start one as user {user}")), "{refused}");
        }
        assert!(refusal(0, 1000).is_some());
    }
}
