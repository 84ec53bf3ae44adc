//! The engines on a clock: costs change no byte, every row does one thing at a time, and the profiles order the
//! experiments as the papers do.

use std::collections::HashMap;

use outboard_nic::costs::{EngineCosts, Machine};
use outboard_nic::profile::Profile;
use outboard_nic::{datapath, host, ordered, triggered};
use outboard_plan::selection::Collective;
use outboard_sim::nics::figures::core_direct::{AllgatherFigures, PaperCluster, allgather, costs_of};
use outboard_sim::nics::figures::tianhe::{PaperOperation, SpeedComparison, compare};
use outboard_sim::nics::trace::{Activity, NicTrace, TraceRow};
use outboard_sim::nics::{EngineKind, EngineSettings, JobPlan, NicPlan, PreparedPlan, TimingModel, call_of};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn profile(name: &str) -> &'static Profile {
    Profile::named(name).expect("it is built in")
}

/// A cost from nothing to a millisecond.
fn any_cost(rng: &mut ChaCha8Rng) -> f64 {
    if rng.random_ratio(1, 4) { 0.0 } else { 10f64.powf(rng.random_range(0.0..6.0)) }
}

fn any_rate(rng: &mut ChaCha8Rng) -> f64 {
    10f64.powf(rng.random_range(-2.0..2.0))
}

fn any_machine(rng: &mut ChaCha8Rng) -> Machine {
    Machine {
        send: any_cost(rng),
        notice: any_cost(rng),
        poll: any_cost(rng),
        copy_rate: any_rate(rng),
        memory_rate: any_rate(rng),
        combine_rate: any_rate(rng),
        bus_rate: any_rate(rng),
        bus_latency: any_cost(rng),
        link_rate: any_rate(rng),
        link_latency: any_cost(rng),
    }
}

fn everyone_does_one_thing_at_a_time(trace: &NicTrace, case: &str) {
    let mut until: HashMap<TraceRow, f64> = HashMap::new();
    for span in &trace.spans {
        let free = until.insert(span.row, span.until).unwrap_or(0.0);
        assert!(free <= span.from && span.from < span.until, "{case}: {span:?} from {free} on");
        if let Activity::Wait(cause) = span.activity {
            assert!(cause.by != span.row, "{case}: {span:?} waits for itself");
            assert!(cause.sent.is_none_or(|(_, sent)| sent <= span.until), "{case}: {span:?} ends before it is sent");
        }
    }
}

/// Carries out every algorithm that the engine accepts at one size, with costs by seed, and judges the bytes.
fn costs_change_no_byte<S: EngineSettings, C: EngineCosts<S::Engine>>(
    engine: EngineKind,
    settings: impl Fn(&mut ChaCha8Rng) -> S,
    costs: impl Fn(&mut ChaCha8Rng) -> C,
) {
    let mut carried_out = 0;
    for (seed, hosts) in (0..).zip([vec![0, 0, 1, 1, 2], vec![0, 1, 2, 3, 4, 5, 6], vec![0, 0, 0, 1]]) {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        for (choice, bytes) in
            Collective::ALL.into_iter().flat_map(Collective::algorithms).zip([70_001, 9, 16_384].into_iter().cycle())
        {
            let call = call_of(choice, hosts.len() as u32, bytes);
            if engine.takes(&hosts, &call).is_err() {
                continue;
            }
            let jobs = vec![JobPlan { nodes: hosts.clone(), calls: vec![call; 2] }];
            let plan = NicPlan { jobs, settings: settings(rng), death: None };
            let clock = TimingModel {
                machine: any_machine(rng),
                costs: costs(rng),
                nodes_per_machine: 1,
                compute: any_cost(rng),
            };
            let prepared = PreparedPlan::new(&plan).expect("it takes it");
            let case = format!("{engine}, {choice}, seed {seed}, {hosts:?}, {clock:?}");
            let (timing, trace) =
                prepared.time_and_trace(&clock).unwrap_or_else(|violation| panic!("{case}: {violation}"));
            assert_eq!(prepared.time(&clock), Ok(timing), "{case}: a trace changes nothing");
            everyone_does_one_thing_at_a_time(&trace, &case);
            carried_out += 1;
        }
    }
    assert!(carried_out > 5, "{engine}: {carried_out}");
}

#[test]
fn costs_of_triggered_nics_change_no_byte() {
    let costs = |rng: &mut ChaCha8Rng| triggered::TriggeredCosts {
        request: any_cost(rng),
        message: any_cost(rng),
        contexts: rng.random_range(1..100),
        miss: any_cost(rng),
        resident: 0.0,
        resident_pair: 0.0,
    };
    costs_change_no_byte(EngineKind::Triggered, |_| triggered::TriggeredSettings::default(), costs);
}

#[test]
fn costs_of_ordered_nics_change_no_byte() {
    let costs = |rng: &mut ChaCha8Rng| ordered::OrderedCosts { trigger: any_cost(rng), unit_rate: any_rate(rng) };
    costs_change_no_byte(EngineKind::Ordered, |_| ordered::OrderedSettings::default(), costs);
}

#[test]
fn costs_of_hosts_change_no_byte() {
    let progress = |rng: &mut ChaCha8Rng| match rng.random_ratio(1, 2) {
        true => host::ProgressMode::Thread,
        false => host::ProgressMode::Tests { every: 100_000 + any_cost(rng) as u64 },
    };
    let settings =
        |rng: &mut ChaCha8Rng| host::HostSettings { progress: progress(rng), ..host::HostSettings::default() };
    costs_change_no_byte(EngineKind::Host, settings, |_| host::HostCosts);
}

#[test]
fn costs_of_datapath_accelerators_change_no_byte() {
    let costs = datapath::DatapathCosts::bluefield3();
    costs_change_no_byte(EngineKind::Datapath, |_| datapath::DatapathSettings::default(), |_| costs);
}

fn on_a(algorithm: &str, bytes: u64) -> AllgatherFigures {
    allgather(profile("cluster-a"), PaperCluster::A, algorithm, bytes).expect("a figure")
}

fn among_leaders(algorithm: &str) -> String {
    format!("hierarchical:leaders=1,between={algorithm}")
}

/// CD Sec. VI-D: ranks can compute in nearly all of a rendezvous. Exceptions are the rotation of Bruck's algorithm, and
/// the copies within a host.
#[test]
fn cd_7_overlap_is_full_in_flat_communicators_and_less_in_hierarchical_ones() {
    let flat = on_a("standard-exchange", 1 << 20).overlap;
    assert!(flat > 0.95 && on_a("ring", 1 << 20).overlap > 0.95, "{flat}");
    let bruck = on_a("rotated-bruck", 1 << 20).overlap;
    assert!(bruck < flat - 0.01, "{bruck} of {flat}");
    for algorithm in ["standard-exchange", "bruck", "ring"] {
        for bytes in [256 << 10, 1 << 20] {
            let overlap = on_a(&among_leaders(algorithm), bytes).overlap;
            assert!(overlap > 0.0 && overlap < bruck, "{algorithm}, {bytes} B: {overlap} of {bruck}");
        }
    }
}

/// CD Sec. VI-G: further leaders cost more, by queue pairs and messages, than they gain.
#[test]
fn one_leader_is_faster_than_several_that_all_meet() {
    for bytes in [64, 8 << 10, 256 << 10] {
        let latency =
            |leaders| on_a(&format!("multi-leader:leaders={leaders},between=standard-exchange"), bytes).latency;
        let one = on_a(&among_leaders("standard-exchange"), bytes).latency;
        assert!(one < latency(2) && latency(2) < latency(4), "{bytes} B: {one}, {}, {}", latency(2), latency(4));
    }
}

/// CD Sec. VI-G: more groups are slower. Small blocks cost messages, and copies of large blocks share the memory.
#[test]
fn one_group_is_faster_than_two_and_two_are_faster_than_four() {
    let groups =
        |leaders, bytes| on_a(&format!("hierarchical:leaders={leaders},between=standard-exchange"), bytes).latency;
    for bytes in [64, 512, 1 << 10, 8 << 10, 256 << 10] {
        let latencies = [1, 2, 4].map(|leaders| groups(leaders, bytes));
        assert!(latencies.is_sorted_by(|a, b| a < b), "{bytes} B: {latencies:?}");
    }
}

/// CD Sec. VI-F, with nothing fitted: three ports among leaders save rounds, which matter less as blocks grow.
#[test]
fn three_ports_help_small_messages_among_leaders() {
    let gain = |bytes| {
        let latency = |cluster, ports| {
            let algorithm = format!("{},ports={ports}", among_leaders("standard-exchange"));
            allgather(profile("cluster-b"), cluster, &algorithm, bytes).expect("a figure").latency
        };
        1.0 - latency(PaperCluster::B_3_PORTS, 3) / latency(PaperCluster::B, 1)
    };
    let gains = [64, 1 << 10, 64 << 10].map(gain);
    assert!(gains.is_sorted_by(|a, b| a > b) && gains[2] > 0.0, "{gains:?}");
}

/// CD Sec. VI-E: memory grows with queue pairs. The costs are fitted to the two other algorithms.
#[test]
fn cd_6_memory_of_bruck_follows_from_its_queue_pairs() {
    let (_, costs) = costs_of(profile("cluster-a")).expect("a triggered NIC");
    let pairs = ["rotated-bruck", "standard-exchange", "ring"].map(|algorithm| on_a(algorithm, 64).queue_pairs);
    assert_eq!(pairs, [42, 21, 6]);
    let memory = costs.resident + costs.resident_pair * pairs[0] as f64;
    assert!((memory / 160.0 - 1.0).abs() < 0.06, "{memory}");
}

fn on_tianhe(operation: PaperOperation, tasks: usize, bytes: u64) -> SpeedComparison {
    compare(profile("tianhe"), operation, tasks, bytes).expect("a figure")
}

/// TH Sec. 2.2: the trend of speed-ups with the size.
#[test]
fn broadcasts_gain_less_and_reductions_more_as_they_grow() {
    let speed_ups = |operation, sizes: &[u64]| -> Vec<f64> {
        sizes.iter().map(|bytes| on_tianhe(operation, 1, *bytes).speed_up()).collect()
    };
    let broadcasts = speed_ups(PaperOperation::Broadcast, &[256, 4 << 10, 16 << 10, 64 << 10]);
    assert!(broadcasts.is_sorted_by(|a, b| a > b), "{broadcasts:?}");
    let sizes = [256, 4 << 10, 16 << 10, 64 << 10, 256 << 10];
    let reductions = speed_ups(PaperOperation::Reduce, &sizes);
    let both = speed_ups(PaperOperation::Allreduce, &sizes);
    assert!(reductions.is_sorted() && both.is_sorted(), "{reductions:?}, {both:?}");
}

/// TH Sec. 2.2: the NIC passes on results that it has combined. So an allreduce gains as much as a reduce, and more for
/// large vectors.
#[test]
fn an_allreduce_gains_more_than_a_reduce() {
    for (tasks, bytes) in [(1, 256 << 10), (8, 16 << 10), (8, 64 << 10), (32, 64 << 10)] {
        let [reduce, both] =
            [PaperOperation::Reduce, PaperOperation::Allreduce].map(|one| on_tianhe(one, tasks, bytes));
        assert!(reduce.speed_up() < both.speed_up(), "{tasks} tasks, {bytes} B: {reduce:?}, {both:?}");
    }
}

/// TH Table 1: a call uses more of the buffers the larger it is, and the more tasks there are. The first column decides
/// what the table counts, and holds within a factor of 2 from 256 B to 1 MB.
#[test]
fn th_7_calls_use_more_of_the_buffers_by_size_and_tasks() {
    let used = |tasks, bytes| on_tianhe(PaperOperation::Allreduce, tasks, bytes).used;
    let measured =
        [(256, 0.01), (4 << 10, 0.12), (16 << 10, 1.61), (64 << 10, 2.6), (256 << 10, 7.16), (1 << 20, 23.69)];
    for (bytes, percent) in measured {
        let error = used(1, bytes) * 100.0 / percent;
        assert!((0.5..2.0).contains(&error), "{bytes} B: {error} of {percent} %");
    }
    let by_tasks = [1, 8, 32].map(|tasks| [256, 4 << 10, 32 << 10].map(|bytes| used(tasks, bytes)));
    assert!(by_tasks.iter().all(|by_size| by_size.is_sorted_by(|a, b| a < b)), "{by_tasks:?}");
    for size in 0..3 {
        assert!(by_tasks.map(|by_size| by_size[size]).is_sorted_by(|a, b| a < b), "{by_tasks:?}");
    }
}
