//! Places of a payload in this process. The kernel reads or writes the bytes there itself (SP-4), for several payloads
//! in one call.
//!
//! Invariant: the places stay valid while this value lives. Before each access the user must check whether the places
//! may still be read or written: a rank may have its buffers back meanwhile.

use super::MappedBytes;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

/// Most pieces that the kernel accepts in one call.
const MOST_PIECES: usize = 1024;

/// Places of one payload, in the order of its bytes.
#[derive(Debug, Clone, Default)]
pub struct ScatterList {
    places: SmallVec<[MappedBytes; 2]>,
    bytes: usize,
}

impl FromIterator<MappedBytes> for ScatterList {
    fn from_iter<T: IntoIterator<Item = MappedBytes>>(places: T) -> Self {
        let places: SmallVec<[MappedBytes; 2]> = places.into_iter().collect();
        let bytes = places.iter().map(MappedBytes::len).sum();
        ScatterList { places, bytes }
    }
}

/// Equal places hold the same bytes of memory in the same order.
impl PartialEq for ScatterList {
    fn eq(&self, other: &Self) -> bool {
        let same = |(one, other): (&MappedBytes, &MappedBytes)| one.is(other);
        self.places.len() == other.places.len() && self.places.iter().zip(&other.places).all(same)
    }
}

impl ScatterList {
    /// Bytes of all places together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The places, or parts of places, that hold `len` bytes from `at` on.
    fn parts(&self, mut at: usize, mut len: usize) -> impl Iterator<Item = MappedBytes> {
        self.places.iter().filter_map(move |place| {
            let before = at.min(place.len());
            let taken = (place.len() - before).min(len);
            (at, len) = (at - before, len - taken);
            (taken > 0).then(|| place.part(before, taken))
        })
    }

    /// Writes bytes that were received elsewhere to the places, from `at` on.
    ///
    /// # Panics
    /// If the bytes reach beyond the end.
    pub fn put(&self, at: usize, mut from: &[u8]) {
        assert!(from.len() <= self.bytes - at, "{} bytes at {at} of {}", from.len(), self.bytes);
        for part in self.parts(at, from.len()) {
            let (own, rest) = from.split_at(part.len());
            part.copy_in(own);
            from = rest;
        }
    }

    /// Copies the first bytes out again. A rank may have changed them.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn take(&self, mut into: &mut [u8]) {
        assert!(into.len() <= self.bytes, "{} bytes of {}", into.len(), self.bytes);
        for part in self.parts(0, into.len()) {
            let (own, rest) = into.split_at_mut(part.len());
            part.copy_out(own);
            into = rest;
        }
    }

    /// Reads the next bytes of the stream, whose first byte belongs at `at`; bytes behind the payload go to `beyond`.
    /// Returns the number of bytes read, with those in `beyond`; 0 at the end of the stream.
    ///
    /// # Errors
    /// The kernel's reason; then nothing was read.
    pub fn receive(&self, socket: impl AsFd, at: usize, beyond: &mut [u8]) -> Result<usize, Errno> {
        // These values live as long as the pieces made of them, so that the memory stays.
        let parts: SmallVec<[MappedBytes; 2]> = self.parts(at, self.bytes).collect();
        let beyond = libc::iovec { iov_base: beyond.as_mut_ptr().cast(), iov_len: beyond.len() };
        let pieces: SmallVec<[libc::iovec; 4]> = parts.iter().map(MappedBytes::iovec).chain([beyond]).collect();
        let count = pieces.len().min(MOST_PIECES) as libc::c_int;
        // SAFETY: the kernel writes to `beyond`, which is borrowed during the call, and to the bytes of `parts`. Those
        // bytes stay as long as `parts`, and no references to them exist.
        let read = unsafe { libc::readv(socket.as_fd().as_raw_fd(), pieces.as_ptr(), count) };
        usize::try_from(read).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Bytes in order, from different places, for one call to the kernel.
#[derive(Default)]
pub struct GatherList<'a> {
    pieces: SmallVec<[IoSlice<'a>; 8]>,
    bytes: usize,
}

impl<'a> GatherList<'a> {
    /// Appends bytes of this process.
    pub fn push(&mut self, bytes: &'a [u8]) {
        if self.pieces.len() < MOST_PIECES && !bytes.is_empty() {
            self.bytes += bytes.len();
            self.pieces.push(IoSlice::new(bytes));
        }
    }

    /// Appends the bytes of a payload, from `at` on.
    pub fn push_scattered(&mut self, scatter_list: &'a ScatterList, mut at: usize) {
        for place in &scatter_list.places {
            // SAFETY: the kernel copies the bytes once, whatever they are then, and nothing else reads them.
            let bytes = unsafe { place.bytes() };
            self.push(&bytes[at.min(bytes.len())..]);
            at = at.saturating_sub(bytes.len());
        }
    }

    /// Bytes of all pieces together. Pieces beyond the kernel's limit for one call are not gathered.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends as much as the socket accepts now; returns the number of bytes. A rank may change its bytes meanwhile.
    ///
    /// # Errors
    /// The kernel's reason; then nothing was sent.
    pub fn send(&self, socket: impl AsFd) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(socket, &self.pieces, &mut SendAncillaryBuffer::default(), flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemfdRanges;
    use crate::region::MemfdRegion;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// SP-4: the bytes of a stream reach their places however the stream is cut, and later bytes do not.
    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn bytes_of_a_socket_are_placed_in_order_and_nowhere_else() {
        let region = MemfdRegion::create("test", 8192).unwrap();
        let ranges = MemfdRanges::default();
        ranges.register(0x1000, 8192, region.fd().try_clone_to_owned().unwrap()).unwrap();
        let places = [(0x1100, 300), (0x2000, 0), (0x1010, 50), (0x2800, 1000)];
        let placement: ScatterList =
            places.iter().map(|&(address, bytes)| ranges.find(address, bytes).unwrap()).collect();
        assert_eq!(placement.bytes(), 1350);
        assert!(placement == placement.clone() && placement != ScatterList::default());
        let sent: Vec<u8> = (0..1400u32).map(|at| (at % 251) as u8 + 1).collect();
        for cut in [1, 299, 300, 301, 349, 350, 1349] {
            region.write(0, &[0; 8192]);
            let ((mut one, other), mut beyond) = (UnixStream::pair().unwrap(), [0; 50]);
            placement.put(0, &sent[..7]);
            let mut at = 7;
            for part in [&sent[7..cut.max(7)], &sent[cut.max(7)..]].into_iter().filter(|part| !part.is_empty()) {
                one.write_all(part).unwrap();
                at += placement.receive(&other, at, &mut beyond).unwrap();
            }
            assert_eq!((at, &beyond[..]), (sent.len(), &sent[1350..]));
            let (mut back, mut all) = (vec![0; 1350], vec![0; 8192]);
            placement.take(&mut back);
            assert!(back == sent[..1350], "cut at {cut}");
            region.read(0, &mut all);
            assert_eq!(all.iter().filter(|byte| **byte != 0).count(), 1350, "nothing lies anywhere else");
        }
    }
}
