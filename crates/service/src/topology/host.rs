//! Identity of this host: service processes with an equal identity share the host's memory and link (SP-8).
//!
//! The identity consists of the boot id, which identifies a kernel, and of the network namespace, which separates
//! containers and emulated hosts that share a kernel but no network. The identity is constant while the daemon lives.
//! It contains no name, so it may be sent to other hosts.

use std::hash::Hasher;
use std::io;
use std::os::unix::fs::MetadataExt;

use outboard_proto::HostId;
use siphasher::sip::SipHasher13;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const NETWORK: &str = "/proc/self/ns/net";

/// The identity of this process's host.
pub(crate) fn identity() -> io::Result<HostId> {
    let network = std::fs::metadata(NETWORK)?;
    Ok(mix(&std::fs::read_to_string(BOOT_ID)?, network.dev(), network.ino()))
}

fn mix(boot: &str, device: u64, inode: u64) -> HostId {
    let mut hasher = SipHasher13::new_with_keys(device, inode);
    hasher.write(boot.trim().as_bytes());
    HostId(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sp_8_a_host_is_a_boot_and_a_network() {
        assert_eq!(identity().expect("/proc"), identity().expect("/proc"));
        assert_eq!(mix("a\n", 4, 5), mix("a", 4, 5));
        assert_ne!(mix("a", 4, 5), mix("b", 4, 5));
        assert_ne!(mix("a", 4, 5), mix("a", 4, 6));
    }
}
