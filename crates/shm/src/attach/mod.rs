//! The attach socket: rare control between a rank and the service process of its host (SP-2, SP-3).
//!
//! A rank connects to a `SOCK_SEQPACKET` Unix socket and sends [`AttachRequest::Hello`]; the service process answers
//! with [`AttachReply::Welcome`] and the descriptors of the control region. From then on the rank sends requests, each
//! with a token of its choice. Each request gets exactly one reply with the same token, in any order: making a group
//! can take long. Each side takes the end of the connection for the end of the other process. Collectives never use
//! this socket.
//!
//! [`message`] holds the messages and their codec, [`channel`] carries them and their descriptors.

use std::path::{Path, PathBuf};

pub mod channel;
pub mod message;

pub use channel::{AttachChannel, ChannelError, PeerCredentials, ReceivedMessage};
pub use message::{
    ATTACH_VERSION, AttachDecodeError, AttachReply, AttachRequest, GroupReady, Hello, OFFER_BYTES, RestagedBuffers,
    TEXT_BYTES, Welcome,
};

/// The environment variable that names a socket.
pub const SOCKET_VARIABLE: &str = "OUTBOARD_SOCKET";
/// The environment variable that names the runtime directory of a user, by the XDG base directory specification.
pub const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// The runtime directory of the user of this process: `XDG_RUNTIME_DIR`, else `/run/user/UID`. The directory is not
/// checked.
#[must_use]
pub fn runtime_directory() -> PathBuf {
    // The specification requires that relative paths are ignored.
    let named = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| Path::new("/run/user").join(rustix::process::geteuid().as_raw().to_string()))
}

/// The default socket of the service process of this user.
#[must_use]
pub fn user_socket() -> PathBuf {
    runtime_directory().join("outboard/outboardd.sock")
}
