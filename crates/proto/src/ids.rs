//! Names and time.
//!
//! Newtypes for everything the protocol names, so that a rank is never taken for a service process.
//! [`Instant`] is the machine's own clock: nanoseconds since an origin the driver chooses.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since the driver's origin. In the simulator this is virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Time since `earlier`, zero when `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, rhs: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, rhs: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A service process. The ID is drawn at random at the start of the process, so a restarted daemon has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpId(pub u64);

impl fmt::Display for SpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service process {:016x}", self.0)
    }
}

/// A host: service processes with equal ids share memory and the link to all others (SP-8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

/// A group, by the 32-bit handle that its members agreed on when they made it. Every datagram carries the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupHandle(pub u32);

impl fmt::Display for GroupHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {:08x}", self.0)
    }
}

/// An offer by which a rank can join one group. Only the receivers of the offer know its ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfferId(pub u64);

/// One collective of a group. The calls of a group are counted from 1; 0 stands for no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u64);

/// The instance number that stands for all messages of a group. No collective has it.
pub(crate) const TAGGED: InstanceId = InstanceId(0);

/// One rank's call of a collective, named by the driver. The ID stands for the buffers that the rank passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Memory of the service process itself, named by the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StagingId(pub u64);

/// A multicast address before the driver maps it to an address of its fabric. Equal (job, set of service processes,
/// subgroup) have equal channels, so that communicators of the same hosts share a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MulticastChannel(pub u64);
