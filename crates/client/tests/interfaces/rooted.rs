//! Gathers and scatters by the Rust interface.

use crate::rank::{contribution, world};
use crate::service::{Behaviour, FakeService};
use outboard::{BlockList, Context, Contribution, Destination, Group, Request, Status};

pub(crate) const GAP: u64 = 5;
pub(crate) const UNTOUCHED: u8 = 0xee;

/// The blocks of all ranks at the root: bytes and offsets, with a gap behind each block.
pub(crate) struct RootBlocks {
    pub(crate) bytes: Vec<u64>,
    offsets: Vec<u64>,
}

impl RootBlocks {
    pub(crate) fn new(bytes: Vec<u64>, gap: u64) -> RootBlocks {
        let offsets = (0..bytes.len()).map(|at| bytes[..at].iter().map(|bytes| bytes + gap).sum()).collect();
        RootBlocks { bytes, offsets }
    }

    /// These blocks in a buffer, with untouched gaps between them.
    pub(crate) fn laid_out(&self, block: impl Fn(u32, usize) -> Vec<u8>) -> Vec<u8> {
        let end = self.offsets.last().unwrap() + self.bytes.last().unwrap() + GAP;
        let mut all = vec![UNTOUCHED; end as usize];
        for ((rank, &bytes), &offset) in (0..).zip(&self.bytes).zip(&self.offsets) {
            all[offset as usize..][..bytes as usize].copy_from_slice(&block(rank, bytes as usize));
        }
        all
    }

    pub(crate) fn block<'a>(&self, all: &'a mut [u8], rank: usize) -> &'a mut [u8] {
        &mut all[self.offsets[rank] as usize..][..self.bytes[rank] as usize]
    }

    pub(crate) fn list(&self) -> BlockList<'_> {
        BlockList { bytes: &self.bytes, offsets: &self.offsets }
    }
}

/// Posts each kind of gather and scatter at `root`, in place and not, even and uneven; checks the gaps between the
/// blocks, too.
pub(crate) fn gathers_and_scatters(world: &[(Context, Group)], root: u32, bytes: usize) {
    let even = RootBlocks::new(vec![bytes as u64; world.len()], 0);
    let uneven = RootBlocks::new((0..world.len()).map(|rank| (rank % 3 * bytes) as u64).collect(), GAP);
    for in_place in [false, true] {
        gather(world, root, in_place, &even, |group, from, receive| {
            // SAFETY: the buffers are kept until the requests have ended.
            unsafe { group.igather(root, from, receive, bytes as u64) }
        });
        gather(world, root, in_place, &uneven, |group, from, receive| {
            let bytes = uneven.bytes[group.rank()? as usize];
            // SAFETY: the buffers are kept until the requests have ended.
            unsafe { group.igatherv(root, from, bytes, receive, Some(uneven.list())) }
        });
        scatter(world, root, in_place, &even, |group, send, to| {
            // SAFETY: the buffers are kept until the requests have ended.
            unsafe { group.iscatter(root, send, to, bytes as u64) }
        });
        scatter(world, root, in_place, &uneven, |group, send, to| {
            let bytes = uneven.bytes[group.rank()? as usize];
            // SAFETY: the buffers are kept until the requests have ended.
            unsafe { group.iscatterv(root, send, Some(uneven.list()), to, bytes) }
        });
    }
}

type PostResult = Result<Request, outboard::Error>;

fn gather(
    world: &[(Context, Group)],
    root: u32,
    in_place: bool,
    lists: &RootBlocks,
    post: impl Fn(&Group, Contribution, *mut u8) -> PostResult,
) {
    let own = |rank: u32| contribution(rank, lists.bytes[rank as usize] as usize);
    let sends: Vec<Vec<u8>> = (0..world.len() as u32).map(own).collect();
    let mut receive = lists.laid_out(|_, bytes| vec![UNTOUCHED; bytes]);
    let mut requests = Vec::new();
    for ((rank, (_, group)), send) in (0..).zip(world).zip(&sends) {
        let from = if in_place && rank == root {
            lists.block(&mut receive, rank as usize).copy_from_slice(send);
            Contribution::InPlace
        } else {
            Contribution::At(send.as_ptr())
        };
        let receive = if rank == root { receive.as_mut_ptr() } else { std::ptr::null_mut() };
        requests.push(post(group, from, receive).unwrap());
    }
    requests.iter_mut().for_each(|request| assert_eq!(request.wait(None), Some(Ok(()))));
    assert!(receive == lists.laid_out(contribution), "{:?} bytes at rank {root}, in place: {in_place}", lists.bytes);
}

fn scatter(
    world: &[(Context, Group)],
    root: u32,
    in_place: bool,
    lists: &RootBlocks,
    post: impl Fn(&Group, *const u8, Destination) -> PostResult,
) {
    let send = lists.laid_out(contribution);
    let mut receives: Vec<Vec<u8>> = lists.bytes.iter().map(|bytes| vec![UNTOUCHED; *bytes as usize]).collect();
    let mut requests = Vec::new();
    for ((rank, (_, group)), receive) in (0..).zip(world).zip(&mut receives) {
        let stays = in_place && rank == root;
        let to = if stays { Destination::InPlace } else { Destination::At(receive.as_mut_ptr()) };
        let send = if rank == root { send.as_ptr() } else { std::ptr::null() };
        requests.push(post(group, send, to).unwrap());
    }
    requests.iter_mut().for_each(|request| assert_eq!(request.wait(None), Some(Ok(()))));
    for (rank, receive) in (0..).zip(receives) {
        let stays = in_place && rank == root;
        let expected = if stays { vec![UNTOUCHED; receive.len()] } else { contribution(rank, receive.len()) };
        assert!(receive == expected, "rank {rank} of {:?} bytes from rank {root}, in place: {in_place}", lists.bytes);
    }
    assert!(send == lists.laid_out(contribution), "what is sent is left alone");
}

#[test]
fn wrong_arguments_of_gathers_and_scatters_are_named() {
    let service = FakeService::start(Behaviour::default());
    let world = world(&service, 2);
    let (mut memory, null) = ([0u8; 64], std::ptr::null_mut());
    let at = memory.as_mut_ptr();
    let refused = |posted: PostResult, problem: &str| {
        let error = posted.unwrap_err();
        assert_eq!(error.status(), Status::Argument);
        assert!(error.to_string().contains(problem), "{error}");
    };
    let (root, other) = (&world[0].1, &world[1].1);
    let list = |bytes: &'static [u64; 2]| Some(BlockList { bytes, offsets: &[0, 8] });
    // SAFETY: all calls are rejected before any buffer is touched.
    unsafe {
        refused(root.igather(2, Contribution::At(at), at, 8), "`root` is 2");
        refused(root.igather(0, Contribution::At(at), null, 8), "`receive` is NULL");
        refused(other.igather(0, Contribution::At(null), null, 8), "`send` is NULL");
        refused(other.igather(0, Contribution::InPlace, at, 8), "on the root, rank 0, alone");
        refused(other.igather(0, Contribution::At(at), at, u64::MAX), "more than the address space");
        refused(root.iscatter(0, null, Destination::At(at), 8), "`send` is NULL");
        refused(root.iscatter(0, at, Destination::InPlace, u64::MAX), "`bytes_per_rank`");
        refused(other.iscatter(0, null, Destination::InPlace, 8), "on the root, rank 0, alone");
        refused(root.igatherv(0, Contribution::At(at), 8, at, None), "`receive` has no blocks");
        refused(root.igatherv(0, Contribution::At(at), 8, at, list(&[9, 8])), "sends itself 8 bytes and receives 9");
        refused(root.iscatterv(0, at, list(&[8, 8]), Destination::At(at), 9), "sends itself 8 bytes and receives 9");
        refused(root.iscatterv(0, null, list(&[8, 8]), Destination::InPlace, 0), "`send` is NULL");
    }
    assert!(!root.offloads(0) && root.offloads(1 << 20));
}
