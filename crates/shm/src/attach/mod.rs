//! The attach socket: rare control between a rank and the service process of its host (SP-2, SP-3).
//!
//! A rank connects to a `SOCK_SEQPACKET` Unix socket and says [`Request::Hello`]; the service process answers with
//! [`Reply::Welcome`] and the descriptors of the control region. From then on the rank sends requests, each with a
//! token of its choice, and gets exactly one reply with the same token, in any order: making a group can take long. The
//! end of the connection is evidence of death, both ways. Collectives never go through here.
//!
//! [`message`] holds the messages and their codec, [`channel`] carries them and their descriptors.

pub mod channel;
mod foreign;
pub mod message;

pub use channel::{Channel, ChannelError, Peer, Received};
pub use foreign::{Foreign, drop_elsewhere};
pub use message::{
    ATTACH_VERSION, DecodeError, GroupReady, Hello, OFFER_BYTES, Reply, Request, Restaged, TEXT_BYTES, Welcome,
};

/// The socket where the service process listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/outboard/outboardd.sock";
/// The environment variable that names another socket.
pub const SOCKET_VARIABLE: &str = "OUTBOARD_SOCKET";
