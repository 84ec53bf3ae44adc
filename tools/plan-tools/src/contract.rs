//! Contracts of the collectives, for [`crate::verify()`].
//!
//! Contracts follow from the definitions of the collectives. If the order of contributions is promised, contracts also
//! follow from the definitions of the algorithms. No contract follows from the code that builds the programs.

use outboard_plan::alltoall::Blocks;
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Algorithm, Arguments, PlanError, Rank, Span, Topology, Vector};

use crate::verify::{Contract, ContributionSpan, Contributors, PromisedSpan};

/// The contract of `rank` for a call that `choice` carries out.
pub fn contract(choice: Choice, arguments: &Arguments<'_>, rank: Rank) -> Result<Contract, PlanError> {
    let Arguments { topology, root, bytes, exclusive, in_place, .. } = *arguments;
    let ranks = topology.ranks();
    let total = || bytes.checked_mul(ranks.into()).ok_or(PlanError::Bytes { ranks });
    let at = |rank: Rank| u64::from(rank.0) * bytes;
    // Blocks of equal size in the order of ranks. Each block holds the bytes of its source's contribution from `from`
    // on.
    let of_all = |from| {
        let block = |q| PromisedSpan::of_one(Span::output(at(q), bytes), q, from);
        (0..ranks).map(Rank).map(block).collect::<Vec<_>>()
    };
    let contract = match choice.collective() {
        Collective::Allgather => {
            let extents = arguments.blocks(Collective::Allgather)?;
            let own = extents.block(rank);
            let block = |q| PromisedSpan::of_one(extents.block(q), q, 0);
            let gathered = moved(rank, own.len, extents.total(), (0..ranks).map(Rank).map(block).collect());
            if in_place {
                Contract {
                    input_bytes: 0,
                    before: vec![ContributionSpan { span: own, source: rank, from: 0 }],
                    ..gathered
                }
            } else {
                gathered
            }
        }
        Collective::Broadcast if rank == root => moved(rank, bytes, 0, Vec::new()),
        Collective::Broadcast => moved(rank, 0, bytes, vec![PromisedSpan::of_one(Span::output(0, bytes), root, 0)]),
        Collective::Alltoall => moved(rank, total()?, total()?, of_all(at(rank))),
        Collective::Gather if rank == root => moved(rank, bytes, total()?, of_all(0)),
        Collective::Gather => moved(rank, bytes, 0, Vec::new()),
        Collective::Scatter => {
            let input = if rank == root { total()? } else { 0 };
            moved(rank, input, bytes, vec![PromisedSpan::of_one(Span::output(0, bytes), root, at(rank))])
        }
        Collective::Barrier => moved(rank, 0, 0, Vec::new()),
        Collective::Reduce => {
            let span = Span::output(0, if rank == root { bytes } else { 0 });
            let of = order(choice, topology, root, rank);
            combined(rank, arguments, bytes, vec![PromisedSpan { span, from: 0, of }])
        }
        Collective::Allreduce => combined(rank, arguments, bytes, all_combined(choice, topology, arguments.vector()?)),
        Collective::ReduceScatter => {
            let extents = arguments.blocks(Collective::ReduceScatter)?;
            let block = extents.block(rank);
            let (span, of) = (Span::output(0, block.len), order(choice, topology, root, rank));
            combined(rank, arguments, extents.total(), vec![PromisedSpan { span, from: block.offset, of }])
        }
        Collective::Scan => {
            let count = rank.0 + u32::from(!exclusive);
            let span = Span::output(0, if count > 0 { bytes } else { 0 });
            let of = Contributors::Round { first: Rank(0), count };
            combined(rank, arguments, bytes, vec![PromisedSpan { span, from: 0, of }])
        }
    };
    Ok(contract)
}

/// The contract of `rank` for an exchange; `all` are the blocks of every rank.
pub fn exchange(rank: Rank, all: &[Blocks]) -> Contract {
    let mine = &all[rank.0 as usize];
    let (input_bytes, output_bytes) = mine.bytes();
    let sources = mine.receive.iter().zip(all).zip(0..);
    let after = sources
        .map(|((span, theirs), source)| PromisedSpan::of_one(*span, Rank(source), theirs.send[rank.0 as usize].offset));
    moved(rank, input_bytes, output_bytes, after.collect())
}

/// The contract of a collective that only moves data; all input of `rank` is its own contribution.
fn moved(rank: Rank, input_bytes: u64, output_bytes: u64, mut after: Vec<PromisedSpan>) -> Contract {
    after.retain(|one| !one.span.is_empty());
    let before = vec![ContributionSpan { span: Span::input(0, input_bytes), source: rank, from: 0 }];
    Contract { element_bytes: None, input_bytes, output_bytes, before, after }
}

/// The contract of a reduction of vectors of `bytes` bytes; the output of `rank` has the length of the rank's result.
fn combined(rank: Rank, arguments: &Arguments<'_>, bytes: u64, after: Vec<PromisedSpan>) -> Contract {
    let output_bytes = after.iter().filter_map(|one| one.span.end()).max().unwrap_or(0);
    Contract { element_bytes: Some(arguments.element_bytes), ..moved(rank, bytes, output_bytes, after) }
}

/// The order of contributions to a reduce at `root`, or to the block of `rank` in a reduce-scatter.
fn order(choice: Choice, topology: &Topology, root: Rank, rank: Rank) -> Contributors {
    let (ranks, hosts) = (topology.ranks(), topology.hosts());
    let round = |first: u32| Contributors::Round { first: Rank(first % ranks), count: ranks };
    let led = |root: Option<Rank>, first: u32| {
        let hosts = (0..hosts).map(|host| (first + host) % hosts);
        Contributors::Listed(hosts.flat_map(|host| led_by(root, topology.ranks_of(host))).collect())
    };
    match (choice.collective(), choice.leaders().is_some(), choice.algorithm()) {
        (Collective::Reduce, false, Algorithm::Halving) => round(0),
        (Collective::Reduce, false, Algorithm::Chain { .. }) => {
            let mut order: Vec<Rank> = (0..hosts).flat_map(|host| topology.ranks_of(host)).collect();
            let place = order.iter().position(|rank| *rank == root);
            order.rotate_left(place.unwrap_or(0));
            Contributors::Listed(order.into())
        }
        (Collective::Reduce, false, _) => round(root.0),
        (Collective::Reduce, true, Algorithm::Halving) => led(Some(root), 0),
        (Collective::Reduce, true, _) => led(Some(root), topology.host_of(root)),
        (_, false, Algorithm::RecursiveHalving) => Contributors::Listed(reversed_bits(ranks).map(Rank).collect()),
        (_, false, _) => round(rank.0 + 1),
        (_, true, Algorithm::RecursiveHalving) => {
            Contributors::Listed(reversed_bits(hosts).flat_map(|host| topology.ranks_of(host)).collect())
        }
        (_, true, _) => led(None, topology.host_of(rank) + 1),
    }
}

/// The combinations that every rank of an allreduce is promised.
fn all_combined(choice: Choice, topology: &Topology, vector: Vector) -> Vec<PromisedSpan> {
    let (ranks, hosts) = (topology.ranks(), topology.hosts());
    // Ranks in ring order from rank `first`, or the ranks of all hosts from host `first`.
    let from = |first: u32| match choice.leaders() {
        None => Contributors::Round { first: Rank(first), count: ranks },
        Some(_) => {
            let hosts = (0..hosts).map(|host| (first + host) % hosts);
            Contributors::Listed(hosts.flat_map(|host| topology.ranks_of(host)).collect())
        }
    };
    // In a ring, every part has an order of its own.
    let parts = match (choice.leaders(), choice.algorithm()) {
        (None, Algorithm::Ring { .. } | Algorithm::ReduceScatterMulticast { .. }) => ranks,
        (Some(_), Algorithm::Ring { .. }) => hosts,
        _ => 1,
    };
    let part = |q: u32| {
        let (offset, len) = vector.part(parts.into(), q.into());
        PromisedSpan { span: Span::output(offset, len), from: offset, of: from((q + 1) % parts) }
    };
    (0..parts).map(part).collect()
}

/// The ranks of a host, `leader` first if it is one of them.
fn led_by(leader: Option<Rank>, mut ranks: Vec<Rank>) -> Vec<Rank> {
    ranks.sort_by_key(|rank| Some(*rank) != leader);
    ranks
}

/// The order in which recursive halving combines contributions: places sorted by bit-reversed number, each with its
/// ranks. If the number of ranks exceeds a power of two by `excess`, the first `2 * excess` ranks share places in
/// pairs.
fn reversed_bits(ranks: u32) -> impl Iterator<Item = u32> {
    let rounds = ranks.ilog2();
    let excess = ranks - (1 << rounds);
    let first = move |place: u32| place + place.min(excess);
    let place = move |i: u32| i.reverse_bits().checked_shr(u32::BITS - rounds).unwrap_or(0);
    (0..1 << rounds).flat_map(move |i| first(place(i))..first(place(i) + 1))
}
