//! Network interfaces: lookup by name, MTU and address. Never changes an interface.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    name: String,
    index: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    #[error("there is no network interface {name} ({source}); name one of `ip link`")]
    Unknown { name: String, source: io::Error },
    #[error("interface {0} has no IPv4 address; give it one (`ip address add ADDRESS/BITS dev {0}`) or name another")]
    NoIpv4(String),
    #[error("cannot ask for network interfaces: {0}")]
    Kernel(#[from] io::Error),
}

fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

impl Interface {
    pub fn named(name: &str) -> Result<Self, InterfaceError> {
        let socket = any_socket()?;
        match netdevice::name_to_index(&socket, name) {
            Ok(index) => Ok(Self { name: name.to_owned(), index }),
            Err(error) => Err(InterfaceError::Unknown { name: name.to_owned(), source: error.into() }),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self) -> io::Result<usize> {
        let answer = self.query(libc::SIOCGIFMTU)?;
        // SAFETY: the kernel has written this member.
        let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
        usize::try_from(mtu).map_err(io::Error::other)
    }

    /// The first IPv4 address of the interface.
    ///
    /// # Errors
    /// When the interface has no IPv4 address, or is gone.
    pub fn address(&self) -> Result<Ipv4Addr, InterfaceError> {
        let answer = self.query(libc::SIOCGIFADDR).map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => InterfaceError::NoIpv4(self.name.clone()),
            Some(libc::ENODEV) => InterfaceError::Unknown { name: self.name.clone(), source: error },
            _ => InterfaceError::Kernel(error),
        })?;
        // SAFETY: the kernel has written this member as an IPv4 address, because the socket is an IPv4 socket.
        let address = unsafe { *(&raw const answer.ifr_ifru.ifru_addr).cast::<libc::sockaddr_in>() };
        Ok(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()))
    }

    /// Queries the kernel about this interface.
    fn query(&self, command: libc::Ioctl) -> io::Result<libc::ifreq> {
        let socket = any_socket()?;
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, &from) in request.ifr_name.iter_mut().zip(self.name.as_bytes()).take(libc::IFNAMSIZ - 1) {
            *to = from as libc::c_char;
        }
        // SAFETY: the request reads the name, which ends with a NUL byte, and writes a member of the union.
        match unsafe { libc::ioctl(socket.as_raw_fd(), command, &raw mut request) } {
            0 => Ok(request),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_found_by_name() {
        let named = Interface::named("lo").expect("every host has lo");
        assert!(named.mtu().expect("lo has an MTU") >= 1500);
        assert_eq!(named.address().expect("lo has an address"), Ipv4Addr::LOCALHOST);
        assert!(matches!(Interface::named("nosuch0"), Err(InterfaceError::Unknown { .. })));
    }
}
