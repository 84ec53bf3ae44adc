//! `outboard explain datapath`: the rates that a datapath accelerator sustains, beside the measurements of the
//! multicast paper (MC Table I, Fig. 13 to 16).

use std::fmt::Write as _;

use outboard_nic::datapath::{DatapathSettings, ReceiveLoad, Transport, saturated_rate};

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;
const WRITES: Transport = Transport::Writes { packets: 1 };
/// The paper's names.
const TRANSPORTS: [(&str, Transport); 2] = [("UC", WRITES), ("UD", Transport::Datagrams)];
/// The numbers of threads in the figures; the largest is half of the accelerator's threads.
const THREADS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Chunks/s of a link of 1.6 Tbit/s, in millions, in chunks of 4 KiB (MC Sec. VII).
const NEXT_LINK: f64 = 1600e9 / 8.0 / 4096.0 / 1e6;

fn settings(transport: Transport, threads: u32) -> DatapathSettings {
    DatapathSettings { transport, threads, ..DatapathSettings::default() }
}

/// GiB/s of payload.
fn throughput(transport: Transport, threads: u32, load: ReceiveLoad) -> f64 {
    saturated_rate(&settings(transport, threads), load) * load.chunk_bytes as f64 / GIB
}

pub(crate) fn show() -> String {
    let mut text = String::new();
    header(&mut text);
    one_thread(&mut text);
    threads(&mut text);
    chunks(&mut text);
    rates(&mut text);
    text
}

fn header(text: &mut String) {
    let costs = DatapathSettings::default().costs;
    let _ = writeln!(
        text,
        "BlueField-3: {} cores of {} threads at {} GHz, filled core by core\n\
         a completion: instructions + stalls * n ^ {:.3} cycles with n threads at work on the core\n\
         fitted: UC sustains 200 Gbit/s with 4 threads; all other numbers below are predicted",
        costs.cores, costs.threads_per_core, costs.gigahertz, costs.contention
    );
}

/// MC Table I.
fn one_thread(text: &mut String) {
    let _ = writeln!(text, "\nTable I: one thread, 8 MiB in chunks of 4 KiB");
    let _ = writeln!(text, "      instructions  cycles  GiB/s  measured");
    for ((name, transport), measured) in TRANSPORTS.into_iter().zip([11.9, 5.2]) {
        let work = settings(transport, 1).costs.work(transport);
        let (cycles, rate) = (work.instructions + work.stalls, throughput(transport, 1, ReceiveLoad::PAPER));
        let _ = writeln!(text, "  {name}  {:>12}  {cycles:>6}  {rate:>5.1}  {measured:>8}", work.instructions);
    }
}

/// A line of numbers behind a name.
fn line(text: &mut String, name: &str, numbers: impl Iterator<Item = String>) {
    let numbers: String = numbers.map(|number| format!("{number:>7}")).collect();
    let _ = writeln!(text, "  {name:<8}{numbers}");
}

/// MC Fig. 13 and 14.
fn threads(text: &mut String) {
    let load = ReceiveLoad::PAPER;
    let link = load.link_rate as f64 / 8.0 / GIB;
    let _ = writeln!(text, "\nFig. 13, 14: GiB/s by threads, 8 MiB in chunks of 4 KiB; the link has {link:.1}");
    line(text, "", THREADS.iter().map(u32::to_string));
    for (name, transport) in TRANSPORTS {
        line(text, name, THREADS.iter().map(|threads| format!("{:.1}", throughput(transport, *threads, load))));
    }
    let _ = writeln!(text, "  measured: the link is full with 4 threads (UC), with 8 to 16 (UD)");
}

/// MC Fig. 15.
fn chunks(text: &mut String) {
    let few = &THREADS[..4];
    let _ = writeln!(text, "\nFig. 15: GiB/s by threads, 8 MiB by UC in larger chunks");
    line(text, "", few.iter().map(u32::to_string));
    for packets in [1, 2, 4, 8, 16] {
        let load = ReceiveLoad { chunk_bytes: u64::from(packets) * 4096, ..ReceiveLoad::PAPER };
        let rate = |threads: &u32| format!("{:.1}", throughput(Transport::Writes { packets }, *threads, load));
        line(text, &format!("{} KiB", packets * 4), few.iter().map(rate));
    }
    let _ = writeln!(text, "  measured: the larger the chunks, the fewer threads fill the link");
}

/// MC Fig. 16.
fn rates(text: &mut String) {
    let load = ReceiveLoad { chunk_bytes: 64, ..ReceiveLoad::PAPER };
    let _ = writeln!(text, "\nFig. 16: million chunks/s by threads, chunks of 64 B");
    line(text, "", THREADS.iter().map(u32::to_string));
    for (name, transport) in TRANSPORTS {
        let rate = |threads: &u32| format!("{:.1}", saturated_rate(&settings(transport, *threads), load) / 1e6);
        line(text, name, THREADS.iter().map(rate));
    }
    let _ = writeln!(text, "  measured: 128 threads sustain a link of 1.6 Tbit/s, {NEXT_LINK:.1} of 4 KiB each");
}
