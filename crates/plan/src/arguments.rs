//! Builds the program of a rank from the parts of a call on which a group agrees.

use thiserror::Error;

use crate::algorithm::Algorithm;
use crate::allgather::{self, Extents};
use crate::alltoall::{self, Blocks, BlocksError};
use crate::barrier;
use crate::broadcast::{self, MAX_SEGMENTS};
use crate::combine::{self, Vector};
use crate::program::{MAX_RANKS, Program, Rank};
use crate::rooted::{self, BlockDirection};
use crate::selection::{Choice, Collective};
use crate::topology::Topology;

/// The parts of a call, besides its algorithm, that determine its programs.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    /// The ranks and their hosts. Only algorithms with [`Choice::depends_on_hosts`] use the hosts.
    pub topology: &'a Topology,
    /// The root of a collective that has one.
    pub root: Rank,
    /// Bytes as [`Collective`] counts them.
    pub bytes: u64,
    /// The blocks of an allgather or reduce-scatter, if they differ from the default. By default all blocks have one
    /// size, or the vector is cut into one part per rank, as equal as possible.
    pub extents: Option<&'a Extents>,
    /// Bytes of an element of a reduction; see [`crate::Element::bytes`].
    pub element_bytes: u64,
    /// The scan leaves out the rank's own vector; rank 0 has no result.
    pub exclusive: bool,
    /// Each rank's block of an allgather already lies in `Output`.
    pub in_place: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    #[error("a plan among {ranks} ranks: a group has 1 to {MAX_RANKS} ranks")]
    Ranks { ranks: u32 },
    #[error("{rank} in a plan among {ranks} ranks: ranks count from 0")]
    Rank { rank: Rank, ranks: u32 },
    #[error("{blocks} blocks among {ranks} ranks: describe the hosts of as many ranks as there are blocks")]
    Blocks { blocks: u32, ranks: u32 },
    #[error("{key}={value} of {name}: choose at least {least}")]
    Setting { name: &'static str, key: &'static str, value: u64, least: u64 },
    #[error("{chains} chains for {ranks} ranks: choose up to {ranks} (`chains` of multicast)")]
    Chains { chains: u32, ranks: u32 },
    #[error("{bytes} bytes in segments of {segment}: choose segments (`segment`) of which {MAX_SEGMENTS} are enough")]
    Segments { bytes: u64, segment: u64 },
    #[error("{bytes} bytes of elements of {element_bytes}: a reduction combines whole elements")]
    Elements { bytes: u64, element_bytes: u64 },
    #[error("the blocks of {ranks} ranks do not fit a 64-bit address: lower the byte counts")]
    Bytes { ranks: u32 },
    #[error("the messages that a rank holds do not fit a 64-bit address together: lower the byte count")]
    Scratch,
    #[error("blocks of {bytes} and of {other} bytes: choose another algorithm than bruck, or one size for all")]
    Uneven { bytes: u64, other: u64 },
    #[error(transparent)]
    Exchange(#[from] BlocksError),
}

impl<'a> Arguments<'a> {
    /// Arguments for `bytes` bytes, root 0, elements of one byte, and not in place.
    pub const fn of(topology: &'a Topology, bytes: u64) -> Self {
        Arguments { topology, root: Rank(0), bytes, extents: None, element_bytes: 1, exclusive: false, in_place: false }
    }

    pub fn blocks(&self, collective: Collective) -> Result<Extents, PlanError> {
        let ranks = self.topology.ranks();
        match self.extents {
            Some(extents) if extents.ranks() != ranks => Err(PlanError::Blocks { blocks: extents.ranks(), ranks }),
            Some(extents) => Ok(extents.clone()),
            None if collective == Collective::ReduceScatter => Ok(self.vector()?.parts(ranks)),
            None => Extents::even(ranks, self.bytes).ok_or(PlanError::Bytes { ranks }),
        }
    }

    pub fn vector(&self) -> Result<Vector, PlanError> {
        let Arguments { bytes, element_bytes, .. } = *self;
        if element_bytes == 0 || !bytes.is_multiple_of(element_bytes) {
            return Err(PlanError::Elements { bytes, element_bytes });
        }
        Ok(Vector { count: bytes / element_bytes, element_bytes })
    }

    fn check(&self, choice: Choice, rank: Rank) -> Result<(), PlanError> {
        let ranks = self.topology.ranks();
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(PlanError::Ranks { ranks });
        }
        if let Some(rank) = [rank, self.root].into_iter().find(|rank| rank.0 >= ranks) {
            return Err(PlanError::Rank { rank, ranks });
        }
        if let Some((key, value, least)) = choice.setting_below_minimum() {
            return Err(PlanError::Setting { name: choice.name(), key, value, least });
        }
        match choice.algorithm() {
            Algorithm::Multicast { chains, .. } if chains > ranks => Err(PlanError::Chains { chains, ranks }),
            _ => Ok(()),
        }
    }
}

/// The program of `rank` for a call by `choice`.
pub fn program(choice: Choice, arguments: &Arguments<'_>, rank: Rank) -> Result<Program, PlanError> {
    arguments.check(choice, rank)?;
    let Arguments { topology, root, bytes, exclusive, in_place, .. } = *arguments;
    let (ranks, algorithm) = (topology.ranks(), choice.algorithm());
    match choice.collective() {
        Collective::Allgather => {
            let extents = arguments.blocks(choice.collective())?;
            if choice.all_leaders_meet() {
                let topology = topology.cut(choice.leaders().unwrap_or(1));
                return Ok(allgather::program(Some(1), algorithm, &topology, rank, &extents, in_place));
            }
            Ok(allgather::program(choice.leaders(), algorithm, topology, rank, &extents, in_place))
        }
        Collective::Broadcast => broadcast::program(algorithm, ranks, root, rank, bytes),
        Collective::Alltoall => {
            let blocks = Blocks::even(ranks, bytes).ok_or(PlanError::Bytes { ranks })?;
            alltoall::alltoall(algorithm, ranks, rank, &blocks)
        }
        Collective::Gather => rooted::program(BlockDirection::Gather, algorithm, ranks, root, rank, bytes),
        Collective::Scatter => rooted::program(BlockDirection::Scatter, algorithm, ranks, root, rank, bytes),
        Collective::Barrier => Ok(barrier::program(algorithm, ranks, rank)),
        Collective::Reduce => combine::reduce::program(choice, topology, root, rank, arguments.vector()?),
        Collective::Allreduce => combine::allreduce::program(choice, topology, rank, arguments.vector()?),
        Collective::ReduceScatter => {
            let (extents, element_bytes) = (arguments.blocks(choice.collective())?, arguments.element_bytes);
            let cut = extents.sizes().find(|bytes| !bytes.is_multiple_of(element_bytes.max(1)));
            cut.map_or(Ok(()), |bytes| Err(PlanError::Elements { bytes, element_bytes }))?;
            combine::reduce_scatter::program(choice, topology, rank, &extents)
        }
        Collective::Scan => combine::scan::program(algorithm, exclusive, ranks, rank, arguments.vector()?),
    }
}
