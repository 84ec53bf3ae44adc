//! Result codes: one list for the C interface, completion words and attach replies.
//!
//! Negative codes are grouped by the failed part, as `outboard.h` documents them; a test of the client crate compares
//! the two. As a completion word a status is never 0, which means pending.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    Argument = -1,
    Forked = -2,
    Busy = -3,
    NoService = -20,
    Version = -21,
    ServiceLost = -22,
    Resource = -23,
    Memory = -24,
    RankLost = -40,
    Mismatch = -41,
    Deadline = -42,
    PeerLost = -60,
    Protocol = -80,
    Internal = -99,
}

/// The completion word of [`Status::Ok`]: 0 is taken by "pending".
const OK_WORD: u32 = 1;

impl Status {
    /// Every status, in the order of the header.
    pub const ALL: [Status; 15] = [
        Status::Ok,
        Status::Argument,
        Status::Forked,
        Status::Busy,
        Status::NoService,
        Status::Version,
        Status::ServiceLost,
        Status::Resource,
        Status::Memory,
        Status::RankLost,
        Status::Mismatch,
        Status::Deadline,
        Status::PeerLost,
        Status::Protocol,
        Status::Internal,
    ];

    /// The code of the C interface.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The status with this code of the C interface.
    pub fn from_code(code: i32) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.code() == code)
    }

    /// The completion word of this status; never 0.
    pub(crate) fn to_word(self) -> u32 {
        match self {
            Status::Ok => OK_WORD,
            error => error.code() as u32,
        }
    }

    /// The status of a completion word other than 0; an unknown word is an internal error.
    pub(crate) fn from_word(word: u32) -> Status {
        match word {
            OK_WORD => Status::Ok,
            error => Status::from_code(error as i32).unwrap_or(Status::Internal),
        }
    }

    /// The meaning of the code, without the details of a failure.
    pub const fn meaning(self) -> &'static str {
        match self {
            Status::Ok => "success",
            Status::Argument => "an argument is out of range or NULL",
            Status::Forked => "the handle belongs to the parent process",
            Status::Busy => "the object still has requests in flight or groups",
            Status::NoService => "no service process answers at the socket",
            Status::Version => "service process and library speak different versions",
            Status::ServiceLost => "the service process of this host died",
            Status::Resource => "memory, descriptors or quota exhausted",
            Status::Memory => "a buffer cannot be accessed",
            Status::RankLost => "a rank of the group died or left",
            Status::Mismatch => "ranks disagree on kind, size or configuration",
            Status::Deadline => "a deadline, of calls or of making a group, has passed",
            Status::PeerLost => "a service process of the group died or its host stopped answering",
            Status::Protocol => "a peer sent what the protocol does not allow",
            Status::Internal => "a defect of Outboard; please report it",
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_and_codes_go_both_ways() {
        for status in Status::ALL {
            assert_ne!(status.to_word(), 0);
            assert_eq!(Status::from_word(status.to_word()), status);
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(7), None);
        assert_eq!(Status::from_word(0xdead), Status::Internal);
    }
}
