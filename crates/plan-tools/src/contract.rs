//! What each collective promises, for [`crate::verify()`] and [`crate::verify_reduction()`].
//!
//! Written from the definitions of the collectives and, where the order of contributions is promised, of the algorithms;
//! never from the code that makes their programs.

use outboard_plan::alltoall::Blocks;
use outboard_plan::{
    AllreduceAlgorithm, Extents, LeaderAllreduce, LeaderReduce, LeaderReduceScatter, Rank, ReduceAlgorithm,
    ReduceScatterAlgorithm, Span, Topology, Vector,
};

use crate::verify::{Combination, Contract, Contributors, Piece, ReductionContract};

/// What an exchange promises to `rank`, for [`crate::verify()`]; `all` are the blocks of every rank.
///
/// # Panics
/// When a rank has no blocks in `all`.
pub fn alltoall(rank: Rank, all: &[Blocks]) -> Contract {
    let mine = &all[rank.0 as usize];
    let (input_bytes, output_bytes) = mine.bytes();
    let sources = mine.receive.iter().zip(all).zip(0..);
    let after = sources.map(|((&span, theirs), source)| Piece {
        span,
        source: Rank(source),
        from: theirs.send[rank.0 as usize].offset,
    });
    let own = Piece { span: Span::input(0, input_bytes), source: rank, from: 0 };
    Contract { input_bytes, output_bytes, before: vec![own], after: after.filter(|p| !p.span.is_empty()).collect() }
}

/// What a gather promises to `rank`, for [`crate::verify()`], when the root wants these `blocks`, by rank.
///
/// # Panics
/// When there is no block for `rank`.
pub fn gather(root: Rank, rank: Rank, blocks: &[Span]) -> Contract {
    let input_bytes = blocks[rank.0 as usize].len;
    let before = vec![Piece { span: Span::input(0, input_bytes), source: rank, from: 0 }];
    let (output_bytes, after) = match (rank == root).then_some(blocks) {
        Some(blocks) => {
            let piece = |(span, source): (&Span, u32)| Piece { span: *span, source: Rank(source), from: 0 };
            let pieces = blocks.iter().zip(0..).filter(|(span, _)| !span.is_empty()).map(piece).collect();
            (end_of(blocks), pieces)
        }
        None => (0, Vec::new()),
    };
    Contract { input_bytes, output_bytes, before, after }
}

/// What a scatter promises to `rank`, for [`crate::verify()`], when the root has these `blocks`, by rank.
///
/// # Panics
/// When there is no block for `rank`.
pub fn scatter(root: Rank, rank: Rank, blocks: &[Span]) -> Contract {
    let Span { offset, len, .. } = blocks[rank.0 as usize];
    let after =
        if len == 0 { Vec::new() } else { vec![Piece { span: Span::output(0, len), source: root, from: offset }] };
    let input_bytes = match (rank == root).then_some(blocks) {
        Some(blocks) => end_of(blocks),
        None => 0,
    };
    let before = vec![Piece { span: Span::input(0, input_bytes), source: rank, from: 0 }];
    Contract { input_bytes, output_bytes: len, before, after }
}

/// What a broadcast promises to `rank`, for [`crate::verify()`].
pub fn broadcast(root: Rank, rank: Rank, bytes: u64) -> Contract {
    let piece = |span| Piece { span, source: root, from: 0 };
    if rank == root {
        let before = vec![piece(Span::input(0, bytes))];
        Contract { input_bytes: bytes, output_bytes: 0, before, after: Vec::new() }
    } else {
        let after = vec![piece(Span::output(0, bytes))];
        Contract { input_bytes: 0, output_bytes: bytes, before: Vec::new(), after }
    }
}

/// Bytes up to the end of the last block that is not empty.
fn end_of(blocks: &[Span]) -> u64 {
    blocks.iter().filter(|span| !span.is_empty()).filter_map(Span::end).max().unwrap_or(0)
}

/// What an allgather of these blocks promises to `rank`, for [`crate::verify()`].
///
/// # Panics
/// When there is no such rank.
pub fn allgather(extents: &Extents, rank: Rank, in_place: bool) -> Contract {
    let own = extents.block(rank);
    let contribution = if in_place { own } else { Span::input(0, own.len) };
    let block = |q| Piece { span: extents.block(Rank(q)), source: Rank(q), from: 0 };
    Contract {
        input_bytes: if in_place { 0 } else { own.len },
        output_bytes: extents.total(),
        before: vec![Piece { span: contribution, source: rank, from: 0 }],
        after: (0..extents.ranks()).map(block).collect(),
    }
}

/// What a barrier promises to each rank in bytes, for [`crate::verify()`]: none, to none.
#[must_use]
pub fn barrier() -> Contract {
    Contract { input_bytes: 0, output_bytes: 0, before: Vec::new(), after: Vec::new() }
}

/// What a Reduce promises to `rank`, for [`crate::verify_reduction()`].
pub fn reduce(
    algorithm: ReduceAlgorithm,
    topology: &Topology,
    root: Rank,
    rank: Rank,
    vector: Vector,
) -> ReductionContract {
    let bytes = vector.bytes();
    let round = |first| Contributors::Round { first, count: topology.ranks() };
    // The ranks of all hosts, host by host from `first` on, leaders before the others.
    let led = |first: u32| {
        let hosts = (0..topology.hosts()).map(|host| (first + host) % topology.hosts());
        Contributors::Listed(hosts.flat_map(|host| led_by(root, topology.ranks_of(host))).collect())
    };
    let of = match algorithm {
        ReduceAlgorithm::Binomial => round(root),
        ReduceAlgorithm::Chain { .. } => {
            let mut order = by_host(topology);
            let place = order.iter().position(|rank| *rank == root);
            order.rotate_left(place.unwrap_or(0));
            Contributors::Listed(order.into())
        }
        ReduceAlgorithm::Halving => round(Rank(0)),
        ReduceAlgorithm::Hierarchical { between: LeaderReduce::Binomial | LeaderReduce::Chain { .. } } => {
            led(topology.host_of(root))
        }
        ReduceAlgorithm::Hierarchical { between: LeaderReduce::Halving } => led(0),
    };
    let output_bytes = if rank == root { bytes } else { 0 };
    let span = Span::output(0, output_bytes);
    ReductionContract {
        element_bytes: vector.element_bytes,
        input_bytes: bytes,
        output_bytes,
        after: vec![Combination { span, from: 0, of }],
    }
}

/// What a Reduce-Scatter promises to `rank`, for [`crate::verify_reduction()`].
///
/// # Panics
/// When there is no such rank.
pub fn reduce_scatter(
    algorithm: ReduceScatterAlgorithm,
    topology: &Topology,
    rank: Rank,
    extents: &Extents,
    element_bytes: u64,
) -> ReductionContract {
    let ranks = extents.ranks();
    let block = extents.block(rank);
    let by_host = |hosts: &mut dyn Iterator<Item = u32>| {
        Contributors::Listed(hosts.flat_map(|host| topology.ranks_of(host)).collect())
    };
    let hosts = topology.hosts();
    let of = match algorithm {
        ReduceScatterAlgorithm::Ring { .. } | ReduceScatterAlgorithm::Pairwise { .. } => {
            Contributors::Round { first: Rank((rank.0 + 1) % ranks), count: ranks }
        }
        ReduceScatterAlgorithm::RecursiveHalving => Contributors::Listed(reversed_bits(ranks).into()),
        ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::RecursiveHalving } => {
            by_host(&mut reversed_bits(hosts).into_iter().map(|host| host.0))
        }
        ReduceScatterAlgorithm::Hierarchical {
            between: LeaderReduceScatter::Ring { .. } | LeaderReduceScatter::Pairwise { .. },
        } => by_host(&mut (1..=hosts).map(|steps| (topology.host_of(rank) + steps) % hosts)),
    };
    ReductionContract {
        element_bytes,
        input_bytes: extents.total(),
        output_bytes: block.len,
        after: vec![Combination { span: Span::output(0, block.len), from: block.offset, of }],
    }
}

/// What a Scan promises to `rank`, for [`crate::verify_reduction()`].
pub fn scan(rank: Rank, vector: Vector) -> ReductionContract {
    promise(rank.0 + 1, vector)
}

/// What an Exscan promises to `rank`, for [`crate::verify_reduction()`].
pub fn exscan(rank: Rank, vector: Vector) -> ReductionContract {
    promise(rank.0, vector)
}

fn promise(count: u32, vector: Vector) -> ReductionContract {
    let output_bytes = if count > 0 { vector.bytes() } else { 0 };
    let of = Contributors::Round { first: Rank(0), count };
    ReductionContract {
        element_bytes: vector.element_bytes,
        input_bytes: vector.bytes(),
        output_bytes,
        after: vec![Combination { span: Span::output(0, output_bytes), from: 0, of }],
    }
}

/// What an Allreduce promises to each rank, for [`crate::verify_reduction()`].
pub fn allreduce(algorithm: AllreduceAlgorithm, topology: &Topology, vector: Vector) -> ReductionContract {
    let (ranks, bytes) = (topology.ranks(), vector.bytes());
    let round = |first| Contributors::Round { first: Rank(first), count: ranks };
    let whole = |of| vec![Combination { span: Span::output(0, bytes), from: 0, of }];
    let parts = |parts: u32, of: &dyn Fn(u32) -> Contributors| {
        let part = |q| {
            let (offset, len) = vector.part(parts.into(), u64::from(q));
            Combination { span: Span::output(offset, len), from: offset, of: of((q + 1) % parts) }
        };
        (0..parts).map(part).collect()
    };
    // The ranks of all hosts, host by host from `first` on.
    let by_host = |first: u32| {
        let hosts = (0..topology.hosts()).map(|host| (first + host) % topology.hosts());
        Contributors::Listed(hosts.flat_map(|host| topology.ranks_of(host)).collect())
    };
    let after = match algorithm {
        AllreduceAlgorithm::RecursiveDoubling
        | AllreduceAlgorithm::Rabenseifner
        | AllreduceAlgorithm::ReduceMulticast { .. } => whole(round(0)),
        AllreduceAlgorithm::Ring { .. } | AllreduceAlgorithm::ReduceScatterMulticast { .. } => parts(ranks, &round),
        AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Ring { .. } } => parts(topology.hosts(), &by_host),
        AllreduceAlgorithm::Hierarchical {
            between: LeaderAllreduce::RecursiveDoubling | LeaderAllreduce::Rabenseifner,
        } => whole(by_host(0)),
    };
    ReductionContract { element_bytes: vector.element_bytes, input_bytes: bytes, output_bytes: bytes, after }
}

/// The ranks of a host, `root` first where it is one of them.
fn led_by(root: Rank, mut ranks: Vec<Rank>) -> Vec<Rank> {
    ranks.sort_by_key(|rank| *rank != root);
    ranks
}

/// All ranks, those of a host together.
fn by_host(topology: &Topology) -> Vec<Rank> {
    (0..topology.hosts()).flat_map(|host| topology.ranks_of(host)).collect()
}

/// The ranks of the places in the order of their numbers read backwards in binary, in which distances that halve
/// combine. Of ranks beyond a power of two, `excess`, the first `2 * excess` ranks stand at places in pairs.
fn reversed_bits(ranks: u32) -> Vec<Rank> {
    let rounds = ranks.ilog2();
    let excess = ranks - (1 << rounds);
    let first = |place: u32| place + place.min(excess);
    let place = |i: u32| i.reverse_bits().checked_shr(u32::BITS - rounds).unwrap_or(0);
    (0..1 << rounds).flat_map(|i| first(place(i))..first(place(i) + 1)).map(Rank).collect()
}
