//! Network interfaces: by name or address, and the MTU. Never changes one.

use std::ffi::CStr;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// A network interface of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    name: String,
    index: u32,
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No interface of that name.
    #[error("there is no network interface {name}: {source}; see `ip link`")]
    Unknown {
        /// The name that was given.
        name: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// No interface has that address.
    #[error("no network interface has the address {0}; see `ip address`")]
    NoAddress(Ipv4Addr),
    /// The kernel does not tell.
    #[error("cannot ask for network interfaces: {0}")]
    Kernel(#[from] io::Error),
}

fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

impl Interface {
    /// The interface called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<Self, InterfaceError> {
        let socket = any_socket()?;
        match netdevice::name_to_index(&socket, name) {
            Ok(index) => Ok(Self { name: name.to_owned(), index }),
            Err(error) => Err(InterfaceError::Unknown { name: name.to_owned(), source: error.into() }),
        }
    }

    /// The interface that has `address`.
    ///
    /// # Errors
    /// When none has.
    pub fn with_address(address: Ipv4Addr) -> Result<Self, InterfaceError> {
        match name_of(address)? {
            Some(name) => Self::named(&name),
            None => Err(InterfaceError::NoAddress(address)),
        }
    }

    /// Name as in `ip link`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernel's index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Largest IP packet that passes, in bytes.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn mtu(&self) -> io::Result<usize> {
        let socket = any_socket()?;
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, &from) in request.ifr_name.iter_mut().zip(self.name.as_bytes()).take(libc::IFNAMSIZ - 1) {
            *to = from as libc::c_char;
        }
        // SAFETY: SIOCGIFMTU reads the name, which ends with a NUL byte, and writes `ifru_mtu`.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has written this member.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        usize::try_from(mtu).map_err(io::Error::other)
    }
}

/// Name of the interface that has `address`.
fn name_of(address: Ipv4Addr) -> io::Result<Option<String>> {
    let mut list = ptr::null_mut();
    // SAFETY: the result is a valid place.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entry = list;
    let mut found = None;
    while !entry.is_null() && found.is_none() {
        // SAFETY: entries of the list are valid until it is freed; an address of family AF_INET is a sockaddr_in.
        unsafe {
            let at = (*entry).ifa_addr;
            if !at.is_null() && i32::from((*at).sa_family) == libc::AF_INET {
                let bits = (*at.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                if Ipv4Addr::from(bits.to_ne_bytes()) == address {
                    found = Some(CStr::from_ptr((*entry).ifa_name).to_string_lossy().into_owned());
                }
            }
            entry = (*entry).ifa_next;
        }
    }
    // SAFETY: returned by getifaddrs, freed once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_found_both_ways() {
        let named = Interface::named("lo").expect("every host has lo");
        let addressed = Interface::with_address(Ipv4Addr::LOCALHOST).expect("lo has 127.0.0.1");
        assert_eq!(named, addressed);
        assert!(named.mtu().expect("lo has an MTU") >= 1500);
        assert!(matches!(Interface::named("nosuch0"), Err(InterfaceError::Unknown { .. })));
        let nowhere = Ipv4Addr::new(203, 0, 113, 9);
        assert!(matches!(Interface::with_address(nowhere), Err(InterfaceError::NoAddress(_))));
    }
}
