//! Somebody on the way between two service processes, who reads what passes and may change a byte of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Passes on one connection after the other until the test ends.
pub(crate) struct Tap {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// In front of a listener; changes the byte that the dialer says at this place of the first connection.
    pub(crate) fn on(listener: SocketAddrV4, flip: Option<usize>) -> Tap {
        let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = door.local_addr().expect("an address").port();
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for dialled in door.incoming().map_while(Result::ok) {
                let Ok(on) = TcpStream::connect(listener) else { return };
                let (back, answered) = (dialled.try_clone().expect("a socket"), on.try_clone().expect("a socket"));
                std::thread::spawn(move || pass(answered, back, |_| ()));
                pass(dialled, on, |bytes| {
                    let mut noted = noted.lock().expect("no panic");
                    if let Some(at) = flip.and_then(|at| at.checked_sub(noted.len())).filter(|at| *at < bytes.len()) {
                        bytes[at] ^= 1;
                    }
                    noted.extend_from_slice(bytes);
                });
            }
        });
        Tap { port, seen }
    }

    /// What the dialer has said so far.
    pub(crate) fn seen(&self) -> Vec<u8> {
        self.seen.lock().expect("no panic").clone()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&mut [u8])) {
    let mut bytes = [0; 16 << 10];
    while let Ok(taken @ 1..) = from.read(&mut bytes) {
        see(&mut bytes[..taken]);
        if to.write_all(&bytes[..taken]).is_err() {
            break;
        }
    }
    // Either end may have gone before.
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
