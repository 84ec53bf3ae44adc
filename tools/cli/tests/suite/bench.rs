//! End-to-end tests of `outboard bench` with Outboard's interfaces on small emulated clusters. Every byte is right,
//! calls in offloaded rows are offloaded, and ranks that need nothing of a late rank end before it calls.
//!
//! Needs the daemon and the C library beside the command: `cargo build --workspace` first. Nothing is skipped.

use serde_json::Value;

use crate::program::outboard;

/// The rows of one run of `outboard bench` with these arguments.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("rows.json");
    let done = outboard(&[&["bench"], arguments, &["--json", json.to_str().expect("text")]].concat());
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {said}");
    let text = std::fs::read_to_string(json).expect("rows");
    let mut report: Value = serde_json::from_str(&text).expect("JSON");
    let Value::Array(rows) = report["rows"].take() else { panic!("no rows: {report}") };
    assert!(rows.iter().all(|row| row["verified"] == true), "{rows:?}");
    rows
}

/// Checks for about one offloaded call per repetition: the first and the last call of a phase may be counted a moment
/// late.
fn assert_offloaded(row: &Value) {
    let calls = row["offloaded_calls"].as_f64().expect("a number");
    assert!((0.5..1.5).contains(&calls), "{row}");
}

/// SP-7. The bytes are whole elements for reductions, some elements for each rank for a reduce-scatter, and none for a
/// barrier.
#[test]
fn every_collective_is_right_in_either_layout() {
    let exchanges = ["allgather", "allgatherv", "broadcast", "alltoall", "alltoallv", "gather", "gatherv", "scatter"];
    let exchanges = exchanges.into_iter().chain(["scatterv"]).map(|collective| (collective, "1,30000"));
    let reductions = ["reduce", "allreduce", "reduce-scatter", "scan"].map(|collective| (collective, "0,32,32000"));
    for (collective, sizes) in exchanges.chain(reductions).chain([("barrier", "0")]) {
        for layout in ["contiguous", "strided"] {
            let placed = ["--lab", "2x1gbit", "--ranks-per-host", "2", "--layout", layout];
            for row in rows(&[&[collective], &placed[..], &["--sizes", sizes, "--repetitions", "4"]].concat()) {
                assert_eq!((row["ranks"].as_u64(), row["layout"].as_str()), (Some(4), Some(layout)), "{row}");
                assert_offloaded(&row);
            }
        }
    }
}

/// All systems make the same calls. The shim may pass some calls through; the C interface passes no call through.
#[test]
fn blocking_calls_are_right_whoever_carries_them_out() {
    let placed = ["allreduce", "--blocking", "--lab", "2x1gbit", "--ranks-per-host", "2", "--layout", "strided"];
    let measured = ["--sizes", "8,64K", "--repetitions", "4", "--via", "both", "--peers", "debian"];
    let rows = rows(&[&placed[..], &measured].concat());
    for (row, system) in rows.iter().zip(["outboard", "outboard", "outboard below debian"]) {
        assert_eq!(row["system"], system);
    }
    rows[..2].iter().for_each(assert_offloaded);
    assert_eq!(rows.len(), 6);
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(row["batch_calls"], rows[at % 2]["batch_calls"], "every system has two sizes: {row}");
    }
}

/// GP-1: the service process carries messages of the C interface; the shim leaves messages to the MPI library.
#[test]
fn a_ping_pong_goes_there_and_back() {
    let rows = rows(&["ping-pong", "--lab", "2x1gbit", "--sizes", "0,8,100000", "--repetitions", "4"]);
    let systems = ["outboard", "outboard below debian"].map(|system| [system; 3]).concat();
    assert_eq!(rows.iter().map(|row| row["system"].as_str().expect("a name")).collect::<Vec<_>>(), systems);
    for row in &rows {
        let carried = row["offloaded_calls"].as_f64().expect("a number");
        // Messages that begin and end a phase may be counted a moment before or after the phase.
        assert!((carried - f64::from(row["system"] == "outboard")).abs() < 0.5, "{row}");
    }
}

/// Measures one cell each of two collectives. A cell that is slower below the shim is no failure.
#[test]
fn a_grid_has_a_cell_for_each_collective_and_size() {
    let directory = tempfile::tempdir().expect("a directory");
    let markdown = directory.path().join("grid.md");
    let cells = ["grid", "--blocking", "--labs", "1x1gbit:2", "--collectives", "barrier,reduce", "--sizes", "3,64"];
    let often = ["--rounds", "1", "--again", "2", "--repetitions", "2", "--markdown", markdown.to_str().expect("text")];
    let rows = rows(&[&cells[..], &often].concat());
    let places: Vec<_> = rows.iter().map(|row| (row["collective"].as_str(), row["bytes_per_rank"].as_u64())).collect();
    assert_eq!(places, [(Some("barrier"), Some(0)), (Some("reduce"), Some(64))], "3 bytes are no integers");
    let text = std::fs::read_to_string(markdown).expect("tables");
    assert!(text.contains("| reduce | 1x1gbit:2 | 64 |") && text.contains("of 2 cells lose"), "{text}");
}

/// A slower run is no failure, but a wrong residual is. Natively and below the shim, each run solves its equations.
#[test]
fn a_program_runs_natively_and_preloaded_in_turn() {
    let small = ["programs", "--only", "cg", "--labs", "2x1gbit", "--pairs", "1", "--learn", "0", "--repetitions", "1"];
    let rows = rows(&small);
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    let name = |field| row[field].as_str().expect("a name");
    assert_eq!((name("program"), name("place"), name("native")), ("cg", "2x1gbit", "debian"));
    let median = |side: &str| row[side]["median"].as_f64().filter(|seconds| *seconds > 0.0).expect("a time");
    let ratio = median("below_s") / median("native_s");
    assert!((row["ratio"].as_f64().expect("a number") - ratio).abs() < 1e-9, "{row}");
    assert!(row["offloaded_calls"].is_number(), "the service processes were there: {row}");
}

/// Measures the ranks and the service processes of the unmodified program with and without the shared heap. Also
/// measures sockets alone.
#[test]
fn processor_time_is_shown_with_and_without_shared_heap_and_for_sockets() {
    let rows =
        rows(&["processor-time", "--lab", "2x1gbit", "--sizes", "64K", "--repetitions", "2", "--peers", "debian"]);
    let ways = ["outboard below debian", "outboard below debian, shared heap", "sockets alone", "debian"];
    let expected: Vec<_> = ["alltoallv", "allgather"].iter().flat_map(|call| ways.map(|way| (*call, way))).collect();
    let text = |row: &Value, field: &str| row[field].as_str().expect("a name").to_owned();
    let found: Vec<_> = rows.iter().map(|row| (text(row, "collective"), text(row, "system"))).collect();
    assert!(found.iter().map(|(call, way)| (call.as_str(), way.as_str())).eq(expected), "{found:?}");
    for row in &rows {
        let native = row["system"] == "debian" || row["system"] == "sockets alone";
        assert!(row["verified"] == true && row["host_cpu_s"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["service_cpu_s"].as_f64().is_some_and(|seconds| seconds > 0.0), !native, "{row}");
        assert!(native || row["offloaded_calls"].as_f64() > Some(0.5), "{row}");
    }
}

/// Without multicast every block leaves a host once for each other host, so the daemons used the requested algorithm.
#[test]
fn an_algorithm_that_is_asked_for_carries_out_the_call() {
    let wire_bytes = |algorithm| {
        let measured =
            ["allgather", "--lab", "4x1gbit", "--sizes", "64K", "--repetitions", "4", "--algorithm", algorithm];
        let rows = rows(&measured);
        assert_eq!(rows[0]["algorithm"], algorithm);
        assert_offloaded(&rows[0]);
        rows[0]["wire_bytes"].as_f64().expect("a number")
    };
    let payload = f64::from(64 << 10);
    assert!(wire_bytes("neighbour-exchange") >= 2.0 * 4.0 * 3.0 * payload);
    assert!(wire_bytes("multicast") < 2.0 * 4.0 * 3.0 * payload);
}

/// SP-5: an alltoallv ends for ranks that need no block of the late rank, though the late rank has yet to call.
#[test]
fn a_late_rank_without_blocks_delays_nobody() {
    let placed = ["alltoallv", "--lab", "2x1gbit", "--ranks-per-host", "2"];
    let late = ["--sizes", "30000", "--repetitions", "1", "--late", "3:3000", "--late-silent"];
    let rows = rows(&[&placed[..], &late].concat());
    let late = &rows[0]["late"];
    assert_eq!((late["rank"].as_u64(), late["silent"].as_bool()), (Some(3), Some(true)));
    assert!(late["others_after_call_ms"].as_f64().is_some_and(|ms| ms < 0.0), "they end before it calls: {late}");
}

/// The FFT has equal bits natively and below the shim. The row says how many exchanges were offloaded.
#[test]
fn an_fft_below_the_shim_has_the_bits_of_the_one_without() {
    let rows = rows(&["fft", "--lab", "2x1gbit", "--ranks-per-host", "2", "--grid", "16", "--peers", "debian"]);
    let [ours, native] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(ours["system"], "outboard below debian");
    assert_eq!(ours["checksum"], native["checksum"]);
    assert!(native["offloaded_exchanges"].is_null());
    // In each repetition every field has its transposes forward and backward, each of which is an exchange.
    assert_eq!(ours["exchanges"], 16);
    let offloaded = ours["offloaded_exchanges"].as_f64().expect("a number");
    assert!((8.0..24.0).contains(&offloaded), "{ours}");
}

/// CD-8: small and large histograms go to the service processes, one call for each pass; no other call is counted.
#[test]
fn cd_8_the_histograms_of_a_radix_sort_are_offloaded() {
    let sorts = ["radix", "--lab", "2x1gbit", "--ranks-per-host", "2", "--digit-bits", "--radices", "4,12"];
    let sorts = [&sorts[..], &["--keys", "1000", "--repetitions", "2", "--peers", "debian"]].concat();
    let rows = rows(&sorts);
    let systems: Vec<_> = rows.iter().map(|row| row["system"].as_str().expect("a name")).collect();
    assert_eq!(systems, ["outboard below debian", "outboard below debian", "debian", "debian"]);
    for (row, passes) in rows.iter().zip([8.0, 3.0]) {
        let offloaded = row["offloaded_histograms"].as_f64().expect("a number");
        assert_eq!(row["passes"].as_f64(), Some(passes));
        // The last call of a phase may be counted a moment late.
        assert!((passes - 0.5..passes + 0.5).contains(&offloaded), "{row}");
    }
    assert!(rows[2..].iter().all(|row| row["offloaded_histograms"].is_null()), "{rows:?}");
}

/// GP-5: a repeated call of a recorded group is one entry for the service process. Such a call takes at most half of
/// the control messages that the same pattern takes by single messages. With larger blocks, most control messages of
/// both ways are acknowledgements of links.
#[test]
fn gp_5_a_recorded_group_takes_half_of_the_control_messages_at_most() {
    let placed = ["recorded", "--lab", "4x1gbit", "--ranks-per-host", "2", "--sizes", "4K,16K,64K"];
    let rows = rows(&[&placed[..], &["--repetitions", "10"]].concat());
    assert_eq!(rows.len(), 6);
    for pair in rows.chunks(2) {
        let [basic, recorded] = pair else { panic!("two ways of each size: {rows:?}") };
        assert_eq!((basic["way"].as_str(), recorded["way"].as_str()), (Some("basic"), Some("recorded")));
        let handed = |row: &Value, what: &str| row["handed_over"][what].as_f64().expect("a number");
        // A send and a receive for each of the seven others.
        assert_eq!(handed(basic, "entries_per_rank"), 14.0, "{basic}");
        assert_eq!(handed(recorded, "entries_per_rank"), 1.0, "{recorded}");
        let control = |row| handed(row, "control_messages");
        assert!(control(recorded) <= control(basic) / 2.0, "{basic} {recorded}");
    }
}

/// SP-8: each number of service processes is a separate system, and a link carries the same bytes with all of them.
#[test]
fn sp_8_numbers_of_service_processes_are_compared() {
    let placed = ["allgather", "--lab", "2x1gbit", "--ranks-per-host", "4", "--service-processes", "1,2"];
    let rows = rows(&[&placed[..], &["--sizes", "256K", "--repetitions", "2"]].concat());
    let wire = |system: &str| {
        let row = rows.iter().find(|row| row["system"] == system).unwrap_or_else(|| panic!("{system} in {rows:?}"));
        // A busy machine loses multicasts. Retransmitted bytes, of both repetitions together, enter and leave the
        // switch.
        row["wire_bytes"].as_f64().expect("a number") - row["retransmitted_bytes"].as_f64().expect("a number")
    };
    let (one, two) = (wire("outboard, 1 to a host"), wire("outboard, 2 to a host"));
    assert!((one - two).abs() < one / 10.0, "{one} and {two} bytes");
}
