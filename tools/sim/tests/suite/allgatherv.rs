//! Allgatherv on the virtual network: the links stay full for any sizes. Service processes that do not know the sizes
//! stand in for late ranks, too (SP-6).

use std::time::Duration;

use outboard_sim::{Pattern, StoreKind};

use crate::{one_call, play};

const LATE: Duration = Duration::from_millis(50);
/// Bytes received from which the barrier is a small part of the time.
const LONG: u64 = 1_000_000;
/// Time relative to the link time of the fullest receive link. Headers take 5 %. The barrier, and blocks that end at
/// different times, take the rest.
const MOST_TIME: f64 = 1.15;
/// More than half of the 80 draws must be long enough. A quarter of all blocks is empty, so some draws are too short.
const LEAST_TRIED: usize = 40;
/// More than this many of 120 runs must end early, and as many late. In a quarter of the runs the late block is empty.
const LEAST_SEEN: usize = 10;

/// MC-8 for blocks of any size: the fullest receive link determines the time, not the slowest even share.
#[test]
fn mc_8_uneven_blocks_keep_the_receive_links_full() {
    let mut tried = 0;
    for seed in 0..40 {
        for ranks in [3, 6] {
            let mut scenario = one_call(ranks, Pattern::Allgatherv { seed }, 3_000_000);
            let call = &scenario.groups[0].calls[0];
            let sizes: Vec<u64> = (0..ranks).map(|from| call.sent(from, 0, 0)).collect();
            let received = sizes.iter().sum::<u64>() - sizes.iter().min().expect("ranks");
            if received < LONG {
                continue;
            }
            tried += 1;
            scenario.store = StoreKind::Provenance;
            let outcome = play(&scenario, seed);
            let limit = received as f64 * 8.0 / scenario.network.rate as f64;
            let ratio = outcome.in_collectives.as_secs_f64() / limit;
            assert!(ratio < MOST_TIME, "{sizes:?}: {ratio} of the raw limit");
            assert_eq!(outcome.retransmitted_bytes(), 0, "nothing is lost by its own pace: {sizes:?}");
        }
    }
    assert!(tried > LEAST_TRIED, "{tried} were long enough");
}

/// SP-6: the only rank of a host has not called, so its service process has to request the sizes of the blocks.
#[test]
fn sp_6_a_late_rank_holds_up_only_those_who_need_its_block() {
    let (mut early, mut late) = (0, 0);
    for multicast in [true, false] {
        for seed in 0..30 {
            for per_host in [1, 2] {
                let scenario = one_call(40, Pattern::Allgatherv { seed }, 3000);
                let mut scenario = scenario.multicast(multicast).ranks_per_host(per_host);
                scenario.groups[0].calls[0].late = vec![(39, LATE)];
                let outcome = play(&scenario, seed);
                let needed = scenario.groups[0].calls[0].sent(39, 0, 0) > 0;
                for member in 0..39 {
                    let ended = outcome.ends[&(0, member, 1)];
                    assert_eq!(ended >= LATE, needed, "member {member} with seed {seed}, multicast {multicast}");
                }
                assert_eq!(outcome.late, 1, "SP-9: the late arrival is counted");
                if needed { late += 1 } else { early += 1 }
            }
        }
    }
    assert!(early > LEAST_SEEN && late > LEAST_SEEN, "both kinds were seen: {early}, {late}");
}
