//! A man in the middle between two service processes, who reads all bytes.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Arc, Mutex};

use outboard_fabric::{Fabric, Tcp};
use rustix::net::{Shutdown, shutdown};

use crate::socket;

/// The name of the Unix socket at which siblings dial a fabric.
pub(crate) fn sibling_name(of: &Tcp) -> SocketAddr {
    let name: String = of.local_address().iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("outboard/{name}")).expect("a short name")
}

/// Forwards one connection after the other until the test ends.
pub(crate) struct Tap {
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// Listens at the sibling name of `dialled`, which must not listen there itself, and forwards to the port of `on`.
    pub(crate) fn between(dialled: &Tcp, on: &Tcp) -> Tap {
        let door = UnixListener::bind_addr(&sibling_name(dialled)).expect("the name is free");
        let listener = socket(on);
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for dialled in door.incoming().map_while(Result::ok) {
                let Ok(on) = TcpStream::connect(listener) else { return };
                let (dialled, on) = (File::from(OwnedFd::from(dialled)), File::from(OwnedFd::from(on)));
                let (back, answered) = (dialled.try_clone().expect("a socket"), on.try_clone().expect("a socket"));
                std::thread::spawn(move || pass(answered, back, |_| ()));
                pass(dialled, on, |bytes| noted.lock().expect("no panic").extend_from_slice(bytes));
            }
        });
        Tap { seen }
    }

    /// The bytes that the dialer has sent so far.
    pub(crate) fn seen(&self) -> Vec<u8> {
        self.seen.lock().expect("no panic").clone()
    }
}

fn pass(mut from: File, mut to: File, mut see: impl FnMut(&[u8])) {
    let mut bytes = [0; 16 << 10];
    while let Ok(taken @ 1..) = from.read(&mut bytes) {
        see(&bytes[..taken]);
        if to.write_all(&bytes[..taken]).is_err() {
            break;
        }
    }
    // Either end may have closed before.
    let _ = (shutdown(&to, Shutdown::Both), shutdown(&from, Shutdown::Both));
}
