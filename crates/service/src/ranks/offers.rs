//! Offers: 1,024 bytes that a rank passes to the other members of a future group (`outboard_group_offer`).
//!
//! An offer names the service process that serves the rank, the addresses of that process, and the seat of the rank
//! (SP-1). The offer also holds a handle and a key, which the group uses if this rank becomes its rank 0. Offers travel
//! through the program, so they are checked like any external input: fixed size, magic, version, checksum, bounds. This
//! module holds no state and does no IO.

use std::hash::Hasher;
use std::net::Ipv4Addr;
use std::sync::Arc;

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_fabric::ofi::MAX_OFI_ADDRESS;
use outboard_proto::config::Difference;
use outboard_proto::wire;
use outboard_proto::{GroupHandle, GroupMember, GroupSpec, HostId, OfferId, SpId};
use outboard_shm::attach::OFFER_BYTES;
use siphasher::sip::SipHasher13;
use siphasher::sip128::{self, Hasher128};

use crate::topology::Seat;

/// Longest fabric address in an offer.
pub const MAX_ADDRESS: usize = outboard_fabric::MAX_ADDRESS;
const MAGIC: [u8; 8] = *b"outboard";
/// Version of the layout of an offer; the wire version is a separate field.
const LAYOUT: u8 = 8;
const CHECKSUM_AT: usize = OFFER_BYTES - 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub sp: SpId,
    pub host: HostId,
    /// Random handle for the group.
    pub handle: GroupHandle,
    /// Random input of the key of the group's datagrams.
    pub key: [u64; 2],
    /// [`outboard_proto::Config::digest`] of the service process.
    pub digest: u64,
    /// Unicast address of the service process, opaque.
    pub address: Arc<[u8]>,
    /// Address of the engine beside the service process, opaque, at most [`MAX_OFI_ADDRESS`] bytes. Empty if there is
    /// no engine.
    pub engine: Arc<[u8]>,
    /// Source address of the service process's multicast, if known.
    pub sends_from: Option<Ipv4Addr>,
    /// Rate of the service process's link in bit/s.
    pub link_rate: u64,
    pub seat: Seat,
    /// Random number of this offer, by which service processes name the offer.
    pub id: OfferId,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    #[error("the offer of rank {rank} is damaged ({what}); pass offers on byte by byte")]
    Damaged { rank: u32, what: &'static str },
    #[error("the offer of rank {rank} is of version {found}, ours is {ours}; install the same version on all hosts")]
    Version { rank: u32, found: u8, ours: u8 },
    #[error("the offer at rank {rank} was not made by this process; bring offers in rank order and use each once")]
    NotOurs { rank: u32 },
    #[error("rank {rank} gives another {what} for {sp} than a lower rank; one of both offers is stale")]
    Stale { rank: u32, what: &'static str, sp: SpId },
    #[error(
        "rank 0 on {here} and rank {rank} on {there} are served by daemons that are configured differently: {}",
        Difference { a: *ours, b: *found }
    )]
    Configuration { here: Arc<str>, there: Arc<str>, rank: u32, ours: u64, found: u64 },
}

impl Offer {
    /// Encodes the offer.
    ///
    /// # Panics
    /// If an address is longer than [`MAX_ADDRESS`] or [`MAX_OFI_ADDRESS`]; the fabrics guarantee shorter addresses.
    #[must_use]
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        assert!(self.address.len() <= MAX_ADDRESS, "a fabric address has at most {MAX_ADDRESS} bytes");
        assert!(self.engine.len() <= MAX_OFI_ADDRESS, "an engine's address has at most {MAX_OFI_ADDRESS} bytes");
        let mut bytes = Vec::with_capacity(OFFER_BYTES);
        let mut w = Writer::new(&mut bytes);
        w.bytes(&MAGIC).u8(LAYOUT).u8(wire::VERSION).u32(self.handle.0);
        w.u64(self.sp.0)
            .u64(self.key[0])
            .u64(self.key[1])
            .u64(self.digest)
            .u64(self.host.0)
            .u64(self.id.0)
            .u32(self.sends_from.map_or(0, u32::from))
            .u64(self.link_rate);
        w.u16(self.address.len() as u16).bytes(&self.address);
        w.u16(self.engine.len() as u16).bytes(&self.engine);
        self.seat.encode(&mut w);
        bytes.resize(CHECKSUM_AT, 0);
        let sum = checksum(&bytes);
        Writer::new(&mut bytes).u64(sum);
        bytes.try_into().expect("the longest address and name fit")
    }

    /// Decodes the offers of all ranks in rank order.
    pub(crate) fn decode_all(offers: &[u8]) -> Result<Vec<Offer>, OfferError> {
        offers.chunks(OFFER_BYTES).zip(0..).map(|(offer, rank)| Offer::decode(offer, rank)).collect()
    }

    /// Decodes one offer of exactly [`OFFER_BYTES`] bytes. `rank` only serves the error.
    fn decode(b: &[u8], rank: u32) -> Result<Offer, OfferError> {
        let damaged = |what| OfferError::Damaged { rank, what };
        if b.len() != OFFER_BYTES || b[..8] != MAGIC {
            return Err(damaged("not an offer"));
        }
        if (b[8], b[9]) != (LAYOUT, wire::VERSION) {
            let (found, ours) = if b[8] == LAYOUT { (b[9], wire::VERSION) } else { (b[8], LAYOUT) };
            return Err(OfferError::Version { rank, found, ours });
        }
        let (content, sum) = b.split_at(CHECKSUM_AT);
        if sum != checksum(content).to_le_bytes() {
            return Err(damaged("checksum"));
        }
        Offer::fields(&mut Reader::new(&content[10..])).map_err(|_| damaged("a field"))
    }

    /// Decodes the fields between the versions and the padding.
    fn fields(r: &mut Reader<'_>) -> Result<Offer, DecodeError> {
        let handle = GroupHandle(r.u32()?);
        let (sp, key) = (SpId(r.u64()?), [r.u64()?, r.u64()?]);
        let (digest, host, id) = (r.u64()?, HostId(r.u64()?), OfferId(r.u64()?));
        let sends_from = Some(Ipv4Addr::from(r.u32()?)).filter(|address| !address.is_unspecified());
        let link_rate = r.u64()?;
        let mut address = |most| match usize::from(r.u16()?) {
            length if length <= most => Ok(Arc::from(r.bytes(length)?)),
            _ => Err(DecodeError::Value("address")),
        };
        let (address, engine) = (address(MAX_ADDRESS)?, address(MAX_OFI_ADDRESS)?);
        let seat = Seat::decode(r)?;
        Ok(Offer { sp, host, handle, key, digest, address, engine, sends_from, link_rate, seat, id })
    }
}

/// Checks that the offers of all ranks fit together; returns their group and the seats of its ranks. The handle comes
/// from rank 0's offer. The key depends on all offers, so other offers make another group.
///
/// # Errors
/// See [`OfferError`]. Members that pass equal offers get equal errors.
pub(crate) fn group_spec(parsed: &[Offer]) -> Result<(GroupSpec, Vec<Seat>), OfferError> {
    let first = &parsed[0];
    let mut known = std::collections::HashMap::new();
    for (r, offer) in (0..).zip(parsed) {
        if offer.digest != first.digest {
            let [here, there] = [first, offer].map(|offer| Arc::clone(&offer.seat.node));
            return Err(OfferError::Configuration { here, there, rank: r, ours: first.digest, found: offer.digest });
        }
        let known = *known.entry(offer.sp).or_insert(offer);
        let address = known.address == offer.address && known.sends_from == offer.sends_from;
        let address = address && known.engine == offer.engine;
        let (host, link_rate) = (known.host == offer.host, known.link_rate == offer.link_rate);
        for (what, same) in [("address", address), ("host", host), ("link rate", link_rate)] {
            if !same {
                return Err(OfferError::Stale { rank: r, what, sp: offer.sp });
            }
        }
    }
    // All ranks of a service process share one copy of its addresses.
    let member = |offer: &Offer| {
        let Offer { address, engine, .. } = known[&offer.sp];
        let (address, engine) = (Arc::clone(address), Arc::clone(engine));
        let (sends_from, link_rate) = (offer.sends_from, offer.link_rate);
        GroupMember { sp: offer.sp, host: offer.host, address, sends_from, link_rate, engine, offer: offer.id }
    };
    let members = parsed.iter().map(member).collect();
    let spec = GroupSpec { handle: first.handle, key: common_key(parsed), members };
    // All ranks of a host share one copy of the host's name.
    let mut nodes = std::collections::HashSet::new();
    let seats = parsed.iter().map(|offer| {
        let Seat { node, place } = &offer.seat;
        nodes.insert(Arc::clone(node));
        Seat { node: nodes.get(node).map_or_else(|| Arc::clone(node), Arc::clone), place: *place }
    });
    let seats = seats.collect();
    Ok((spec, seats))
}

/// A key that depends on every offer; computing it needs all of them.
fn common_key(offers: &[Offer]) -> [u64; 2] {
    let mut hasher = sip128::SipHasher24::new_with_keys(offers[0].key[0], offers[0].key[1]);
    for offer in offers {
        hasher.write_u32(offer.handle.0);
        hasher.write_u64(offer.key[0]);
        hasher.write_u64(offer.key[1]);
    }
    let key = hasher.finish128();
    [key.h1, key.h2]
}

/// Detects accidents, not attacks: an offer gives no rights except to its own rank's process.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x6f66_6665, 0x7273);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::CpuBinding;
    use proptest::prelude::*;

    fn offer(sp: u64) -> Offer {
        Offer {
            sp: SpId(sp),
            host: HostId(sp % 2),
            handle: GroupHandle(100 + sp as u32),
            key: [sp, 7],
            digest: 9,
            address: sp.to_le_bytes().as_slice().into(),
            engine: [sp as u8; 16].into(),
            sends_from: Some(Ipv4Addr::new(10, 0, 0, sp as u8)),
            link_rate: sp * 1_000_000_000,
            seat: Seat { node: "h\u{f6}st".into(), place: CpuBinding { socket: Some(sp as u32), core: None } },
            id: OfferId(7),
        }
    }

    fn spec_of(bytes: &[u8]) -> Result<GroupSpec, OfferError> {
        group_spec(&Offer::decode_all(bytes)?).map(|(spec, _)| spec)
    }

    fn blob(offers: &[Offer]) -> Vec<u8> {
        offers.iter().flat_map(Offer::encode).collect()
    }

    #[test]
    fn the_handle_of_a_group_is_that_of_its_lowest_rank() {
        let all = [offer(5), offer(6), offer(5)];
        let (spec, seats) = group_spec(&Offer::decode_all(&blob(&all)).expect("whole")).expect("they fit");
        assert_eq!(seats.iter().map(Seat::to_string).collect::<Vec<_>>()[1], "h\u{f6}st, socket 6, any core");
        assert_eq!(spec.handle, GroupHandle(105));
        assert_eq!(spec.members.iter().map(|m| m.sp.0).collect::<Vec<_>>(), [5, 6, 5]);
        assert_eq!(spec.members.iter().map(|m| m.host.0).collect::<Vec<_>>(), [1, 0, 1]);
    }

    #[test]
    fn mismatched_offers_are_refused_naming_the_rank() {
        let good = blob(&[offer(1), offer(2)]);
        let group = |bytes: &[u8]| spec_of(bytes).expect_err("refused");
        assert!(matches!(group(&good[..OFFER_BYTES + 1]), OfferError::Damaged { rank: 1, .. }));
        let other_settings = blob(&[offer(1), Offer { digest: 4, ..offer(2) }]);
        assert!(matches!(group(&other_settings), OfferError::Configuration { rank: 1, .. }));
        let told = group(&other_settings).to_string();
        assert_eq!(told.matches("h\u{f6}st").count(), 2, "both hosts are named: {told}");
        assert!(told.contains("tuning file") && told.contains("OUTBOARD_TUNING"), "{told}");
        let two_addresses = blob(&[offer(1), Offer { address: [1u8].as_slice().into(), ..offer(1) }]);
        assert!(matches!(group(&two_addresses), OfferError::Stale { rank: 1, what: "address", .. }));
        let two_rates = blob(&[offer(1), Offer { link_rate: 1, ..offer(1) }]);
        assert!(matches!(group(&two_rates), OfferError::Stale { rank: 1, what: "link rate", .. }));
        let two_senders = blob(&[offer(1), Offer { sends_from: None, ..offer(1) }]);
        assert!(matches!(group(&two_senders), OfferError::Stale { rank: 1, what: "address", .. }));
        let two_hosts = blob(&[offer(1), Offer { host: HostId(7), ..offer(1) }]);
        assert!(matches!(group(&two_hosts), OfferError::Stale { rank: 1, what: "host", .. }));
        let mut old = good.clone();
        old[OFFER_BYTES + 9] = 0;
        assert!(matches!(group(&old), OfferError::Version { rank: 1, found: 0, .. }));
    }

    #[test]
    fn a_group_follows_from_every_offer() {
        let all = [offer(5), offer(6), offer(5)];
        let fingerprint = |offers: &[Offer]| spec_of(&blob(offers)).expect("they fit").fingerprint();
        assert_eq!(fingerprint(&all), fingerprint(&all));
        for rank in 0..3 {
            let mut other = all.clone();
            other[rank].key[1] += 1;
            assert_ne!(fingerprint(&other), fingerprint(&all), "the offer of rank {rank} is another's");
        }
    }

    #[test]
    fn names_of_hosts_are_cut_at_a_character_and_kept_printable() {
        let named = |node: &str| Offer { seat: Seat { node: node.into(), place: CpuBinding::default() }, ..offer(1) };
        let long = "\u{fc}".repeat(40);
        assert_eq!(&*Offer::decode(&named(&long).encode(), 0).expect("whole").seat.node, &long[..64]);
        assert!(Offer::decode(&named("a\u{1b}[2J").encode(), 0).is_err());
    }

    proptest! {
        #[test]
        fn every_damaged_byte_is_noticed(at in 0..OFFER_BYTES, flip in 1u8..) {
            let mut bytes = blob(&[offer(1)]);
            bytes[at] ^= flip;
            prop_assert!(spec_of(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 1..3000)) {
            prop_assert!(spec_of(&bytes).is_err());
        }
    }
}
