//! The terms that each algorithm spends, in closed form.
//!
//! The table assumes `P` ranks, one on each host, and `n` bytes as [`super::Collective`] counts them. `a = L + 2 o` is
//! a message, `b` a byte through a link and `c` a byte reduced. Rounds and bytes are from R. Thakur, R. Rabenseifner,
//! W. Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005), and the sources in
//! `Algorithm`:
//!
//! | collective | algorithm | time |
//! |---|---|---|
//! | allgather | ring, neighbour exchange | `(P-1) a + (P-1) n b`, `P/2 a + (P-1) n b` |
//! | allgather | standard exchange, Bruck with `k` ports | `log_(k+1) P (L + 2 k o) + (P-1) n b` |
//! | allgather | hierarchical | as among the hosts, blocks of a host together, then copies |
//! | allgather | multicast (MC-8) | `L + P o + (P-1) n b` |
//! | broadcast | binomial, `r`-nomial | `log2 P (a + n b)`, `log_r P (L + r o + (r-1) n b)` |
//! | broadcast | chain of `s` segments | `(P-1) (a + n/s b) + (s-1) (2 o + n/s b)` |
//! | broadcast | double tree of `s` segments | `log2 P (L + 3 o + 2 n/s b) + (s-1) 3 o + n b` |
//! | broadcast | scatter, allgather | `(log2 P + P-1) a + 2 (P-1)/P n b` |
//! | broadcast | multicast (MC-1) | `a + n b` |
//! | reduce | binomial | `log2 P (a + n b + n c)` |
//! | reduce | halving | `2 log2 P a + 2 (P-1)/P n b + (P-1)/P n c` |
//! | reduce | chain of `s` segments | `(P-1) (a + n/s b + n/s c) + (s-1) (2 o + n/s b + n/s c)` |
//! | reduce | hierarchical | as among the hosts, and copies and reductions of a host |
//! | allreduce | recursive doubling | `log2 P (a + n b + n c)` |
//! | allreduce | ring, Rabenseifner | `2 (P-1) a` or `2 log2 P a`, `+ 2 (P-1)/P n b + (P-1)/P n c` |
//! | allreduce | ring of `s` segments | as a reduce-scatter of `s` segments, `+ (P-1)/s a + (P-1)/P n b` |
//! | allreduce | ring of `s` segments, multicast | as a reduce-scatter of `s` segments, `+ L + P o + (P-1)/P n b` |
//! | allreduce | hierarchical | as among the hosts, and reductions and copies of a host |
//! | allreduce | reduce, multicast | `log2 P (a + n b + n c) + a + n b` |
//! | allreduce | reduce-scatter, multicast | `(P-1) (a + n/P b + n/P c) + L + P o + (P-1)/P n b` |
//! | reduce-scatter | recursive halving | `log2 P a + (P-1)/P n b + (P-1)/P n c` |
//! | reduce-scatter | ring, pairwise | `(P-1) a` or `a + 2 (P-2) o`, `+ (P-1)/P n b + (P-1)/P n c` |
//! | reduce-scatter | ring, pairwise, `s` segments | `(P-1)/s a` or unchanged, `+ (P-1)/P n max(b, c) + n/(P s) c` |
//! | reduce-scatter | hierarchical | as among the hosts, and copies and reductions of a host |
//! | scan | recursive doubling | `log2 P (a + n b + 2 n c)` |
//! | scan | chain of `s` pieces | `(P-1) (a + n/s b + n/s c) + (s-1) (2 o + n/s b + n/s c)` |
//! | alltoall | pull (SP-5) | `3 L + 6 (P-1) o + (P-1) n b` |
//! | alltoall | pairwise, scatter-destination | `(P-1) a` or `L + 2 (P-1) o`, `+ (P-1) n b` |
//! | alltoall | Bruck | `log2 P (a + P/2 n b)` |
//! | gather, scatter | linear, by pull (SP-5) | `3 L + 3 (P-1) o + (P-1) n b` |
//! | gather, scatter | binomial | `log2 P a + (P-1) n b` |
//! | barrier | dissemination | nothing but the ready barrier |
//!
//! Logarithms are rounded up. In a reduce-scatter each block has `s` segments. Collectives that do not pull add the
//! ready barrier of `log2 hosts` rounds (MC-4); multicasts add the handshake (MC-7). The ranks of a host, `ceil(P /
//! hosts)` with adjoining numbers, share its link and its processor. In a round in which each rank sends to the rank
//! `d` further, `min(d, ceil(P / hosts))` messages of a host leave the host; the other messages are copies.

use super::choice::Choice;
use super::collective::Collective;
use super::cost::{Cost, CostTerms, Links};
use crate::algorithm::Algorithm;
use crate::combine::MAX_SEGMENTS;
use crate::partition::powers;

/// With at least this many ranks on a host, some ranks of the host always send while others wait.
const FULL: u64 = 16;

/// A call for which an algorithm is to be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Case {
    pub collective: Collective,
    /// Ranks of the group, at least 1.
    pub ranks: u32,
    /// Hosts of the ranks, `1 ..= ranks`.
    pub hosts: u32,
    /// Bytes as the collective counts them.
    pub bytes: u64,
    /// Whether multicast reaches all ranks, or no host needs it.
    pub multicast: bool,
    /// The class of the links between the hosts; used if there is no tuning.
    pub links: Links,
}

/// Rounds of doubling until `count` is reached: `ceil(log2(count))`.
pub fn rounds_of(count: u64) -> u64 {
    powers(2, count).count() as u64
}

/// The terms of `choice` for a call of its collective. `cost` determines whether link or processor is the limit.
pub fn terms(cost: &Cost, case: &Case, choice: Choice) -> CostTerms {
    let Case { ranks, hosts, bytes, .. } = *case;
    let shape = RankSpread::new(cost, ranks, hosts);
    let spent = match choice.leaders() {
        None => among(shape, choice.collective(), choice.algorithm().effective_for(ranks), bytes),
        // Each leader counts as a host. The exchange among the leaders of one host is ignored.
        Some(leaders) if choice.all_leaders_meet() => {
            by_host(RankSpread::new(cost, ranks, hosts.saturating_mul(leaders)), choice, bytes)
        }
        Some(_) => by_host(shape, choice, bytes),
    };
    let handshake = u64::from(spent.multicast > 0);
    let barrier = if choice.pulls() { 0 } else { rounds_of(shape.hosts) };
    spent + CostTerms { controls: barrier + handshake, ..CostTerms::default() }
}

/// The placement of ranks on hosts.
#[derive(Debug, Clone, Copy)]
struct RankSpread<'a> {
    cost: &'a Cost,
    ranks: u64,
    hosts: u64,
    /// Ranks of the host with the most ranks.
    here: u64,
    /// Whether ranks keep their numbers, so that hosts hold whole groups of ranks that differ in low digits.
    aligned: bool,
}

impl<'a> RankSpread<'a> {
    fn new(cost: &'a Cost, ranks: u32, hosts: u32) -> Self {
        let ranks = u64::from(ranks.max(1));
        let hosts = u64::from(hosts).clamp(1, ranks);
        RankSpread { cost, ranks, hosts, here: ranks.div_ceil(hosts), aligned: true }
    }

    /// One rank of each host.
    fn leaders(self) -> RankSpread<'a> {
        RankSpread { ranks: self.hosts, hosts: self.hosts, here: 1, ..self }
    }

    /// The ranks that take part when the ranks beyond the largest power of two stand aside.
    fn power_of_two(self) -> RankSpread<'a> {
        let ranks = 1 << self.ranks.ilog2();
        RankSpread { ranks, here: self.here.min(ranks), aligned: ranks == self.ranks, ..self }
    }

    /// The longer of two terms that overlap in time.
    fn longer(self, link: CostTerms, processor: CostTerms) -> CostTerms {
        if self.cost.time(&link) >= self.cost.time(&processor) { link } else { processor }
    }

    /// Every rank sends `bytes` to the rank `distance` further and reduces `reduced`.
    fn round(self, distance: u64, bytes: u64, reduced: u64) -> CostTerms {
        self.crossing(if self.hosts == 1 { 0 } else { distance.min(self.here) }, bytes, reduced)
    }

    /// A round among ranks that differ only in the digit of weight `power` to the `base`. If a host has whole groups of
    /// such ranks, no message leaves it.
    fn digit(self, base: u64, power: u64, bytes: u64, reduced: u64) -> CostTerms {
        if self.aligned && self.here.is_multiple_of(power.saturating_mul(base)) {
            return self.crossing(0, bytes, reduced);
        }
        self.round(power, bytes, reduced)
    }

    /// Every rank sends `bytes` and reduces `reduced`; `out` ranks of a host send to other hosts.
    fn crossing(self, out: u64, bytes: u64, reduced: u64) -> CostTerms {
        self.messages(out, self.here - out, bytes, reduced)
    }

    /// Every rank sends `bytes` to every other rank at once and reduces `reduced` of each.
    fn straight(self, bytes: u64, reduced: u64) -> CostTerms {
        self.messages(self.here * (self.ranks - self.here), self.here * (self.here - 1), bytes, reduced)
    }

    /// A host sends `out` messages at once to other hosts and `stays` messages within the host, of `bytes` bytes each.
    /// The host reduces `reduced` for each message.
    fn messages(self, out: u64, stays: u64, bytes: u64, reduced: u64) -> CostTerms {
        CostTerms {
            latencies: u64::from(out > 0),
            messages: 2 * out + stays,
            sent: out.saturating_mul(bytes),
            copied: stays.saturating_mul(bytes),
            reduced: (out + stays).saturating_mul(reduced),
            ..CostTerms::default()
        }
    }

    /// `count` rounds between neighbours. Ranks of a host pass blocks on to each other while the link waits, so the
    /// latency counts once for all blocks of a host.
    fn ring(self, count: u64, bytes: u64, reduced: u64) -> CostTerms {
        let rounds = self.round(1, bytes, reduced).repeated(count);
        let latencies = rounds.latencies.div_ceil(self.here);
        if self.here == 1 {
            return rounds;
        }
        let link = CostTerms { latencies, copied: 0, reduced: 0, ..rounds };
        self.longer(link, CostTerms { latencies, sent: 0, ..rounds })
    }

    /// Pieces of a block of a vector, and the bytes of each piece.
    fn cut(self, block: u64, segment: u64) -> (u64, u64) {
        let pieces = block.div_ceil(segment.max(1)).clamp(1, (MAX_SEGMENTS / self.ranks).max(1));
        (pieces, block.div_ceil(pieces))
    }

    /// A whole ring of segments that do not wait for each other: while one segment is handled, others are under way.
    fn pipelined_ring(self, block: u64, segment: u64, reduces: bool) -> CostTerms {
        let count = self.ranks - 1;
        let (pieces, bytes) = self.cut(block, segment);
        let reduced = if reduces { bytes } else { 0 };
        if pieces == 1 {
            return self.ring(count, bytes, reduced);
        }
        let round = self.round(1, bytes, reduced);
        let latencies = (round.latencies * count).div_ceil(pieces.saturating_mul(self.here));
        self.pipelined(CostTerms { latencies, ..round.repeated(count) }, pieces, reduced)
    }

    /// Pipelined processing of `pieces` pieces, each costing `of_one` and reduced in pieces of `bytes`. The total is
    /// the time of the slower one, link or processor, plus the reduction after the last piece arrives.
    fn pipelined(self, of_one: CostTerms, pieces: u64, bytes: u64) -> CostTerms {
        let all = CostTerms { latencies: of_one.latencies, ..of_one.repeated(pieces) };
        let link = CostTerms { messages: of_one.messages, copied: 0, reduced: 0, ..all };
        self.longer(link, CostTerms { sent: 0, ..all }) + CostTerms { reduced: bytes, ..CostTerms::default() }
    }

    /// Rounds among ranks that differ in one bit; `each` returns sent and reduced bytes by the value of the bit.
    fn doubling(self, each: impl Fn(u64) -> (u64, u64)) -> CostTerms {
        powers(2, self.ranks).fold(CostTerms::default(), |sum, power| {
            let (sent, reduced) = each(power);
            sum + self.digit(2, power, sent, reduced)
        })
    }

    /// Rounds with `base - 1` messages at once, to ranks that differ in one digit; `bytes` returns the bytes of a
    /// message by the value of the digit.
    fn digits(self, base: u64, bytes: impl Fn(u64) -> u64) -> CostTerms {
        powers(base, self.ranks).fold(CostTerms::default(), |sum, power| {
            let round = self.digit(base, power, bytes(power), 0).repeated(base - 1);
            sum + CostTerms { latencies: round.latencies.min(1), ..round }
        })
    }

    /// Rounds with `base - 1` messages at once, to all multiples of 1, `base`, `base^2`, ...; `each` returns sent and
    /// reduced bytes by the distance. At most as many transfers between hosts follow one another as there are hosts.
    fn growing(self, base: u64, each: impl Fn(u64) -> (u64, u64)) -> CostTerms {
        let all = powers(base, self.ranks).fold(CostTerms::default(), |sum, power| {
            let distances = (1..base).map(|i| power.saturating_mul(i)).take_while(|distance| *distance < self.ranks);
            let messages = distances.map(|d| self.round(d.min(self.ranks - d), each(d).0, each(d).1));
            let round = messages.fold(CostTerms::default(), std::ops::Add::add);
            sum + CostTerms { latencies: round.latencies.min(1), ..round }
        });
        CostTerms { latencies: all.latencies.min(self.hosts), ..all }
    }

    /// One rank's whole vector goes to or comes from all other ranks along a tree of `base - 1` children a round, first
    /// between hosts, then within.
    fn tree(self, base: u64, bytes: u64, reduced: u64) -> CostTerms {
        let (rounds, stays) = (powers(base, self.hosts).count() as u64, self.here - 1);
        // If a host is no whole subtree, some of its ranks have children on other hosts too.
        let astray = u64::from(self.hosts > 1 && powers(base, self.here + 1).all(|power| power != self.here));
        let sends = rounds.saturating_mul(base.min(self.hosts).max(2) - 1) + astray;
        CostTerms {
            latencies: rounds,
            messages: sends + rounds + stays,
            sent: sends.saturating_mul(bytes),
            copied: stays.saturating_mul(bytes),
            reduced: (sends + stays).saturating_mul(reduced),
            ..CostTerms::default()
        }
    }

    /// `pieces` pieces of `bytes` bytes go from rank to rank, one behind the other. Each piece is reduced on the way. A
    /// processor handles arrivals in turn: the last rank of a host gets its pieces after the other ranks have theirs,
    /// so hosts wait for each other.
    fn chain(self, pieces: u64, bytes: u64, reduced: u64) -> CostTerms {
        if self.ranks == 1 || pieces == 0 {
            return CostTerms::default();
        }
        let (crossing, within) = (self.hosts - 1, self.ranks - self.hosts);
        let first = CostTerms {
            latencies: crossing,
            messages: 2 * crossing + within,
            sent: crossing.saturating_mul(bytes),
            copied: within.saturating_mul(bytes),
            reduced: (self.ranks - 1).saturating_mul(reduced),
            ..CostTerms::default()
        };
        let out = u64::from(self.hosts > 1);
        let link = CostTerms { sent: out.saturating_mul(bytes), ..CostTerms::default() }.repeated(pieces - 1);
        let processor = CostTerms {
            messages: 2 * out + self.here - 1,
            copied: (self.here - 1).saturating_mul(bytes),
            reduced: self.here.saturating_mul(reduced),
            ..CostTerms::default()
        };
        let in_turn = if self.here > 1 { self.hosts.div_ceil(2) } else { 1 };
        first + self.longer(link, processor.repeated(pieces - 1).repeated(in_turn))
    }

    /// Halves down two binary trees, in `pieces` pieces of `bytes` each. On a host with several ranks about two ranks
    /// have children on other hosts in either tree.
    fn two_trees(self, n: u64, pieces: u64, bytes: u64) -> CostTerms {
        if self.ranks == 1 || pieces == 0 {
            return CostTerms::default();
        }
        let out = if self.hosts == 1 { 0 } else { self.here.min(2) };
        let (depth, stays) = (rounds_of(self.hosts) + u64::from(out > 0 && self.here > 2), self.here - 1);
        let first = CostTerms {
            latencies: depth,
            messages: 3 * depth,
            sent: (2 * depth).saturating_mul(bytes),
            ..CostTerms::default()
        };
        let sent = if out > 0 { n.saturating_add(n / 2 * (out - 1)) } else { 0 };
        let link = CostTerms { sent, ..CostTerms::default() };
        let messages = (stays + 2 * out).saturating_mul(pieces).saturating_mul(2);
        let processor = CostTerms { messages, copied: stays.saturating_mul(n), ..CostTerms::default() };
        first + self.longer(link, processor)
    }

    /// Ranks beyond the largest power of two send their vectors to neighbours before, and get the result afterwards.
    fn folded(self, bytes: u64, back: bool) -> CostTerms {
        let pairs = (self.ranks - self.power_of_two().ranks).min(self.here.div_ceil(2));
        let out = if self.hosts > 1 { pairs.min(self.here % 2) } else { 0 };
        let fold = |reduced| CostTerms {
            latencies: out,
            messages: pairs + out,
            sent: out.saturating_mul(bytes),
            copied: (pairs - out).saturating_mul(bytes),
            reduced: pairs.saturating_mul(reduced),
            ..CostTerms::default()
        };
        if back { fold(bytes) + fold(0) } else { fold(bytes) }
    }

    /// Each rank exchanges half of the vector with the nearest partner, a quarter with the partner at twice that
    /// distance, and so on. Received bytes are reduced at once if `reduce`. The terms also hold for the way back.
    fn halving(self, n: u64, reduce: bool) -> CostTerms {
        self.power_of_two().doubling(|distance| {
            let part = n / (2 * distance);
            (part, if reduce { part } else { 0 })
        })
    }

    /// Gathers the parts that halving leaves with each rank on one rank, the farthest first.
    fn gathered(self, n: u64) -> CostTerms {
        let (rounds, elsewhere) = (rounds_of(self.hosts), n - n / self.hosts);
        CostTerms {
            latencies: rounds,
            messages: self.here.saturating_mul(rounds) + self.here - 1,
            sent: elsewhere,
            copied: if self.here > 1 { n } else { 0 },
            ..CostTerms::default()
        }
    }

    /// Blocks of all ranks go to one rank or come from one rank along a binomial tree. Within a host half of the blocks
    /// move on in each round, and blocks of inner ranks are copied once more.
    fn blocks_of_a_tree(self, n: u64) -> CostTerms {
        let elsewhere = (self.ranks - self.here).saturating_mul(n);
        let copied = (self.here * (rounds_of(self.here) + 1)).div_ceil(2);
        CostTerms { sent: elsewhere, copied: copied.saturating_mul(n), ..self.tree(2, 0, 0) }
    }

    /// With `to_one`, every rank's block goes to one rank, which requests the blocks of other hosts as they are
    /// announced. Otherwise one rank has a block for every rank, and each other host requests its blocks together.
    fn pulled(self, to_one: bool, n: u64) -> CostTerms {
        let elsewhere = self.ranks - self.here;
        let asked = if to_one { elsewhere } else { self.hosts - 1 };
        CostTerms {
            latencies: 3 * elsewhere.min(1),
            messages: 2 * asked + elsewhere + self.here - 1,
            sent: elsewhere.saturating_mul(n),
            copied: self.here.saturating_mul(n),
            ..CostTerms::default()
        }
    }

    /// The vectors of all ranks of a host go, in `pieces` pieces, to the leader, which combines them.
    fn brought_to_leaders(self, pieces: u64, n: u64) -> CostTerms {
        let others = self.here - 1;
        CostTerms {
            messages: others.saturating_mul(pieces),
            copied: others.saturating_mul(n),
            reduced: others.saturating_mul(n),
            ..CostTerms::default()
        }
    }

    /// A copy of this many bytes by every rank.
    fn copies(self, bytes: u64) -> CostTerms {
        CostTerms { copied: self.here.saturating_mul(bytes), ..CostTerms::default() }
    }

    /// All ranks multicast `bytes`, or one rank does.
    fn multicast(self, all: bool, bytes: u64) -> CostTerms {
        let roots = if all { self.ranks } else { u64::from(self.ranks > 1) };
        let mine = roots.min(self.here);
        let arriving = if self.hosts == 1 { 0 } else { (roots - mine).max(1) };
        CostTerms {
            latencies: u64::from(arriving > 0),
            messages: if self.ranks > 1 { mine + arriving } else { 0 },
            multicast: arriving.saturating_mul(bytes),
            copied: roots.saturating_mul(self.here - 1).saturating_mul(bytes),
            ..CostTerms::default()
        }
    }
}

/// The terms among all ranks, or among all leaders.
fn among(shape: RankSpread<'_>, collective: Collective, algorithm: Algorithm, n: u64) -> CostTerms {
    match collective {
        Collective::Allgather => allgather(shape, algorithm, n),
        Collective::Broadcast => broadcast(shape, algorithm, n),
        Collective::Alltoall => alltoall(shape, algorithm, n),
        Collective::Gather | Collective::Scatter if algorithm == Algorithm::Binomial => shape.blocks_of_a_tree(n),
        Collective::Gather | Collective::Scatter => shape.pulled(collective == Collective::Gather, n),
        Collective::Barrier => CostTerms::default(),
        Collective::Reduce => reduce(shape, algorithm, n),
        Collective::Allreduce => allreduce(shape, algorithm, n),
        Collective::ReduceScatter => reduce_scatter(shape, algorithm, n),
        Collective::Scan => scan(shape, algorithm, n),
    }
}

/// The terms in three steps: within each host, among the leaders, and from the leaders back to their hosts.
fn by_host(shape: RankSpread<'_>, choice: Choice, n: u64) -> CostTerms {
    let (collective, algorithm) = (choice.collective(), choice.algorithm());
    let (ranks, others, leaders) = (shape.ranks, shape.here - 1, shape.leaders());
    let between = |n| among(leaders, collective, algorithm.effective_for(shape.hosts as u32), n);
    // The way from the leader back to the ranks, and into place.
    let back = |n: u64| CostTerms { messages: others, copied: (2 * others).saturating_mul(n), ..CostTerms::default() };
    match collective {
        Collective::Allgather => {
            let local = CostTerms {
                messages: others.saturating_mul(shape.here + shape.hosts - 1),
                copied: others.saturating_mul(ranks).saturating_mul(n),
                ..CostTerms::default()
            };
            between(n.saturating_mul(shape.here)) + local
        }
        Collective::Reduce => {
            let pieces = if let Algorithm::Chain { segment } = algorithm { segments(n, segment).0 } else { 1 };
            shape.brought_to_leaders(pieces, n) + between(n)
        }
        Collective::ReduceScatter => {
            let given = if algorithm == Algorithm::RecursiveHalving { 1 } else { shape.hosts };
            shape.brought_to_leaders(given, n) + between(n) + back(n.div_ceil(ranks))
        }
        _ => shape.brought_to_leaders(1, n) + between(n) + back(n),
    }
}

fn allgather(shape: RankSpread<'_>, algorithm: Algorithm, n: u64) -> CostTerms {
    let ranks = shape.ranks;
    let moved = match algorithm {
        Algorithm::Ring { .. } => shape.ring(ranks - 1, n, 0),
        Algorithm::NeighbourExchange => shape.ring(1, n, 0) + shape.ring(ranks / 2 - 1, n.saturating_mul(2), 0),
        Algorithm::StandardExchange { ports } => shape.digits(u64::from(ports) + 1, |held| held.saturating_mul(n)),
        Algorithm::Bruck { ports } | Algorithm::RotatedBruck { ports } => {
            let base = u64::from(ports) + 1;
            let moved = shape.growing(base, |d| {
                let held = base.saturating_pow(d.ilog(base));
                (held.min(ranks - d).saturating_mul(n), 0)
            });
            let rotates = matches!(algorithm, Algorithm::RotatedBruck { .. });
            if rotates { moved + shape.copies(n.saturating_mul(ranks)) } else { moved }
        }
        Algorithm::Linear => shape.straight(n, 0),
        Algorithm::Multicast { .. } => shape.multicast(true, n),
        other => unreachable!("{other:?} is no algorithm of an allgather"),
    };
    moved + shape.copies(n)
}

fn alltoall(shape: RankSpread<'_>, algorithm: Algorithm, n: u64) -> CostTerms {
    let ranks = shape.ranks;
    let straight = shape.straight(n, 0);
    let moved = match algorithm {
        // A host receives an announcement from every rank of another host. Each rank of the host sends an announcement
        // to every other host. There are as many requests as announcements.
        Algorithm::Pull => {
            let told = 2 * (ranks - shape.here + shape.here * (shape.hosts - 1));
            straight + CostTerms { latencies: 2 * straight.latencies, messages: told, ..CostTerms::default() }
        }
        Algorithm::Pairwise { .. } => {
            // If ranks and ranks per host are powers of two, partners that differ in low bits share a host.
            let within = if ranks.is_power_of_two() && shape.here.is_power_of_two() { shape.here } else { 1 };
            // Ranks of a full host drift into different rounds: about half of each rank's waiting overlaps the sending
            // of others.
            let waits = if shape.here < FULL { 1 } else { 2 };
            CostTerms { latencies: straight.latencies * (ranks - within) / waits, ..straight }
        }
        Algorithm::ScatterDestination { .. } => straight,
        Algorithm::Bruck { .. } => {
            // The number of distances to other ranks that have the bit.
            let with = |bit: u64| ranks / (2 * bit) * bit + (ranks % (2 * bit)).saturating_sub(bit);
            let all: u64 = powers(2, ranks).map(with).sum();
            shape.growing(2, |bit| (with(bit).saturating_mul(n), 0))
                + shape.copies(n.saturating_mul(all.saturating_add(ranks - 1)))
        }
        other => unreachable!("{other:?} is no algorithm of an alltoall"),
    };
    moved + shape.copies(n)
}

fn broadcast(shape: RankSpread<'_>, algorithm: Algorithm, n: u64) -> CostTerms {
    match algorithm {
        Algorithm::Binomial => shape.tree(2, n, 0),
        Algorithm::KNomial { radix } => shape.tree(radix.into(), n, 0),
        Algorithm::Chain { segment } => shape.chain(n.div_ceil(segment.max(1)), n.min(segment), 0),
        Algorithm::DoubleTree { segment } => {
            let half = n.div_ceil(2);
            shape.two_trees(n, half.div_ceil(segment.max(1)), half.min(segment))
        }
        // With fewer bytes than ranks most blocks are empty. Only the non-empty blocks go down the tree and round the
        // ring.
        Algorithm::ScatterAllgather if n < shape.ranks => {
            shape.tree(2, n.div_ceil(2), 0) + shape.chain(1, n.div_ceil(2), 0)
        }
        Algorithm::ScatterAllgather => {
            let elsewhere = n - n.div_ceil(shape.hosts);
            let scattered =
                CostTerms { sent: elsewhere, copied: if shape.here > 1 { n } else { 0 }, ..shape.tree(2, 0, 0) };
            let gathered = shape.ring(shape.ranks - 1, n.div_ceil(shape.ranks), 0);
            if shape.ranks == 1 {
                return CostTerms::default();
            }
            // Ranks that have a subtree's blocks already pass these blocks on at once.
            scattered + CostTerms { latencies: shape.hosts / 2, ..gathered }
        }
        Algorithm::Multicast { .. } => shape.multicast(false, n),
        other => unreachable!("{other:?} is no algorithm of a broadcast"),
    }
}

fn reduce(shape: RankSpread<'_>, algorithm: Algorithm, n: u64) -> CostTerms {
    let moved = match algorithm {
        Algorithm::Binomial => shape.tree(2, n, n),
        Algorithm::Halving => shape.folded(n, false) + shape.halving(n, true) + shape.gathered(n),
        Algorithm::Chain { segment } => {
            let (count, each) = segments(n, segment);
            shape.chain(count, each, each)
        }
        other => unreachable!("{other:?} is no algorithm of a reduce"),
    };
    shape.copies(n) + moved
}

/// The number of segments of a vector of `n` bytes, and the bytes of each.
fn segments(n: u64, segment: u64) -> (u64, u64) {
    let count = n.div_ceil(segment.max(1)).clamp(1, MAX_SEGMENTS);
    (count, n.div_ceil(count))
}

fn allreduce(shape: RankSpread<'_>, algorithm: Algorithm, n: u64) -> CostTerms {
    let block = n.div_ceil(shape.ranks);
    let moved = match algorithm {
        Algorithm::RecursiveDoubling => shape.folded(n, true) + shape.power_of_two().doubling(|_| (n, n)),
        Algorithm::Ring { segment } => {
            shape.pipelined_ring(block, segment, true) + shape.pipelined_ring(block, segment, false)
        }
        Algorithm::Rabenseifner => shape.folded(n, true) + shape.halving(n, true) + shape.halving(n, false),
        Algorithm::ReduceMulticast { .. } => shape.tree(2, n, n) + shape.multicast(false, n),
        Algorithm::ReduceScatterMulticast { segment, .. } => {
            shape.pipelined_ring(block, segment, true) + shape.multicast(true, block)
        }
        other => unreachable!("{other:?} is no algorithm of an allreduce"),
    };
    shape.copies(n) + moved
}

fn reduce_scatter(shape: RankSpread<'_>, algorithm: Algorithm, n: u64) -> CostTerms {
    let block = n.div_ceil(shape.ranks);
    let moved = match algorithm {
        Algorithm::Ring { segment } => shape.pipelined_ring(block, segment, true),
        // Blocks of neighbours lie together, so the farthest partner gets the largest part.
        Algorithm::RecursiveHalving => {
            let places = shape.power_of_two();
            let part = |distance| (u128::from(n) * u128::from(distance) / u128::from(places.ranks)) as u64;
            shape.folded(n, false) + places.doubling(|distance| (part(distance), part(distance)))
        }
        Algorithm::Pairwise { segment } => {
            let (pieces, each) = shape.cut(block, segment);
            let of_one = shape.straight(each, each);
            if pieces == 1 { of_one } else { shape.pipelined(of_one, pieces, each) }
        }
        other => unreachable!("{other:?} is no algorithm of a reduce-scatter"),
    };
    shape.copies(block) + moved
}

fn scan(shape: RankSpread<'_>, algorithm: Algorithm, n: u64) -> CostTerms {
    let moved = match algorithm {
        // The last ranks have no rank this far behind them.
        Algorithm::RecursiveDoubling => shape.growing(2, |distance| {
            let part =
                |bytes: u64| (u128::from(bytes) * u128::from(shape.ranks - distance) / u128::from(shape.ranks)) as u64;
            (part(n), part(n.saturating_mul(2)))
        }),
        Algorithm::Pieces { pieces } => {
            let pieces = u64::from(pieces).clamp(1, n.max(1));
            let piece = n.div_ceil(pieces);
            shape.chain(pieces, piece, piece)
        }
        other => unreachable!("{other:?} is no algorithm of a scan"),
    };
    shape.copies(n) + moved
}
