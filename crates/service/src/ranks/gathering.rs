//! The offers of a group to be, read some at a time: those of tens of thousands of ranks take longer than others may
//! wait.
//!
//! The caller's own offer comes first, so that nothing more is read for whoever has none. Never does IO.

use outboard_shm::attach::OFFER_BYTES;

use crate::ranks::offers::{Offer, OfferError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Gathering {
    ranks: u32,
    rank: u32,
    offers: Vec<Offer>,
}

impl Gathering {
    /// Of a group of `ranks`, for its rank `rank`; the offers have so many bytes.
    pub(crate) fn new(bytes: usize, ranks: u32, rank: u32) -> Result<Gathering, OfferError> {
        let expected = (ranks as usize).checked_mul(OFFER_BYTES);
        if ranks == 0 || ranks > u32::from(u16::MAX) || expected != Some(bytes) {
            return Err(OfferError::Length { bytes, ranks });
        }
        if rank >= ranks {
            return Err(OfferError::Rank { rank, ranks });
        }
        Ok(Gathering { ranks, rank, offers: Vec::new() })
    }

    /// Whether the caller's offer is one that `ours` accepts.
    pub(crate) fn check_own(&self, own: &[u8], ours: impl FnOnce(&Offer) -> bool) -> Result<(), OfferError> {
        let rank = self.rank;
        if ours(&Offer::decode(own, rank)?) { Ok(()) } else { Err(OfferError::NotOurs { rank }) }
    }

    /// The next ones.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), OfferError> {
        for bytes in bytes.chunks(OFFER_BYTES) {
            self.offers.push(Offer::decode(bytes, self.offers.len() as u32)?);
        }
        Ok(())
    }

    /// How many there are yet to come.
    pub(crate) fn missing(&self) -> usize {
        self.ranks as usize - self.offers.len()
    }

    /// Those that have come, in the order of their ranks.
    pub(crate) fn offers(&self) -> &[Offer] {
        &self.offers
    }
}
