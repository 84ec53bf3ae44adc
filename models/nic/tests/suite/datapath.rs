//! Datapath accelerators alone: the rates that a leaf sustains, beside the figures of the multicast paper. The
//! simulator tests that accelerators carry out plans.

use outboard_nic::datapath::{DatapathSettings, ReceiveLoad, Transport, saturated_rate};

const WRITES: Transport = Transport::Writes { packets: 1 };
/// 4 KiB chunks per second that fill 200 Gbit/s, and 1.6 Tbit/s.
const LINE_RATE: f64 = 200e9 / 8.0 / 4096.0;
const NEXT_LINK: f64 = 8.0 * LINE_RATE;

fn chunks(transport: Transport, threads: u32, load: ReceiveLoad) -> f64 {
    saturated_rate(&DatapathSettings { transport, threads, ..DatapathSettings::default() }, load)
}

/// Whether the link is the limit, except for the start and the end of a buffer.
fn fills_the_link(transport: Transport, threads: u32) -> bool {
    chunks(transport, threads, ReceiveLoad::PAPER) > 0.97 * LINE_RATE
}

/// MC Table I: the model gives 11.5 and 6.3 GiB/s where 11.9 and 5.2 were measured.
#[test]
fn mc_r_one_thread_as_in_table_i() {
    let rate = |transport| chunks(transport, 1, ReceiveLoad::PAPER) * 4096.0 / f64::from(1 << 30);
    assert_eq!([WRITES, Transport::Datagrams].map(|transport| format!("{:.1}", rate(transport))), ["11.5", "6.3"]);
}

/// MC Fig. 13 and 14: fitted to 4 threads of written chunks, the model predicts that datagrams need 8 to 16.
#[test]
fn mc_r_threads_that_fill_the_link_as_in_fig_13_and_14() {
    assert_eq!([1, 2, 4, 8].map(|threads| fills_the_link(WRITES, threads)), [false, false, true, true]);
    let needed = (1..=16).find(|threads| fills_the_link(Transport::Datagrams, *threads)).expect("a core is enough");
    assert!((9..=16).contains(&needed), "{needed}");
}

/// MC Fig. 15: the larger the chunks, the fewer threads fill the link.
#[test]
fn mc_r_larger_chunks_need_fewer_threads_as_in_fig_15() {
    let needed = [1, 2, 4].map(|packets| {
        let load = ReceiveLoad { chunk_bytes: u64::from(packets) * 4096, ..ReceiveLoad::PAPER };
        let line_rate = LINE_RATE / f64::from(packets);
        let fills = |threads: &u32| chunks(Transport::Writes { packets }, *threads, load) > 0.97 * line_rate;
        (1..=4).find(fills).expect("four are enough for packets by themselves")
    });
    assert!(needed.is_sorted_by(|a, b| a >= b) && needed[2] == 1, "{needed:?}");
}

/// MC Fig. 16: half of the threads sustain the chunks of a link of 1.6 Tbit/s, 48.8 million/s, by either transport.
#[test]
fn mc_r_half_of_the_threads_sustain_the_next_link_as_in_fig_16() {
    let load = ReceiveLoad { chunk_bytes: 64, ..ReceiveLoad::PAPER };
    assert_eq!(format!("{:.1}", NEXT_LINK / 1e6), "48.8");
    for transport in [WRITES, Transport::Datagrams] {
        let rate = chunks(transport, 128, load);
        assert!(rate > NEXT_LINK, "{transport:?}: {rate}");
    }
    assert!(chunks(Transport::Datagrams, 64, load) < NEXT_LINK, "datagrams need as many as were measured");
}
