//! `outboard explain` of collectives: every stage in every format, and the errors for arguments that do not fit.

use std::process::{Command, Output};

use outboard_plan::selection::Collective;
use outboard_plan::{Arguments, Topology};
use outboard_plan_tools::{contract, goal, text, verify};
use serde_json::Value;

use crate::program::OUTBOARD;

fn explain(arguments: &[&str]) -> Output {
    Command::new(OUTBOARD).arg("explain").args(arguments).output().expect("the command starts")
}

/// The output for arguments that fit.
fn shown(arguments: &[&str]) -> String {
    let output = explain(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&shown(&[arguments, &["--format", "json"]].concat())).expect("JSON")
}

/// The error for arguments that do not fit.
fn refused(arguments: &[&str]) -> String {
    let output = explain(arguments);
    assert!(!output.status.success(), "{arguments:?} is accepted");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("text")
}

/// The text of the plan stage is the format that docs/plan-format.md describes.
#[test]
fn the_plan_that_is_shown_can_be_read_and_proven() {
    let arguments = ["allgather", "--algorithm", "bruck", "--ports", "2", "--ranks", "7", "--size", "3K"];
    let shown_text = shown(&arguments);
    assert!(shown_text.starts_with("# allgather, bruck:ports=2, 7 ranks, 3072 B per block\nplan 1\n"), "{shown_text}");
    let programs = text::parse(&shown_text).expect("a plan");
    let bruck = Collective::Allgather.read("bruck:ports=2").expect("an algorithm");
    let flat = Topology::flat(7);
    verify(&programs, |rank| contract(bruck, &Arguments::of(&flat, 3072), rank).expect("a contract"))
        .expect("an allgather");

    let view = json(&arguments);
    assert_eq!((view["collective"].as_str(), view["algorithm"].as_str()), (Some("allgather"), Some("bruck:ports=2")));
    assert_eq!((view["ranks"].as_u64(), view["bytes"].as_u64()), (Some(7), Some(3072)));
    for (program, seen) in programs.iter().zip(view["programs"].as_array().expect("programs")) {
        assert_eq!(seen["output_bytes"], program.output_bytes);
        let steps = seen["steps"].as_array().expect("steps");
        assert_eq!(steps.len(), program.steps.len());
        let sends = steps.iter().filter(|step| step["op"] == "send").count();
        assert_eq!(sends, program.steps.iter().filter(|s| matches!(s.op, outboard_plan::Op::Send { .. })).count());
    }
}

/// Every algorithm of every collective has a plan, rounds and a schedule.
#[test]
fn every_collective_is_explained() {
    let exscan = ("exscan", Collective::Scan);
    for (name, collective) in Collective::ALL.map(|one| (one.name(), one)).into_iter().chain([exscan]) {
        for choice in collective.algorithms() {
            is_explained(name, choice.name());
        }
    }
}

fn is_explained(collective: &str, algorithm: &str) {
    let arguments = [collective, "--algorithm", algorithm, "--topology", "3,1,2"];
    let programs = text::parse(&shown(&arguments)).expect("a plan");
    assert_eq!(programs.len(), 6);
    let rounds = json(&[&arguments[..], &["--stage", "rounds"]].concat());
    assert!(!rounds["rounds"].as_array().expect("rounds").is_empty(), "{collective} {algorithm}");
    goal::import(&shown(&[&arguments[..], &["--stage", "goal"]].concat())).expect("a schedule");
}

#[test]
fn rounds_show_messages_and_bytes_per_rank() {
    let arguments = ["broadcast", "--ranks", "4", "--root", "1", "--size", "100", "--stage", "rounds"];
    let text = shown(&arguments);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["broadcast, binomial, 4 ranks, 100 B", "2 rounds, 3 messages"]);
    // The first send of the root is to the larger subtree; both can leave at once.
    assert_eq!(lines[3], "round 0: a rank sends 0 to 200 B and receives 0 to 100 B");
    assert_eq!(lines[4..6], ["  1 -> 3  100 B  message 0", "  1 -> 2  100 B  message 0"]);
    assert_eq!(lines[8], "  3 -> 0  100 B  message 0");
    let root: Vec<&str> = lines[13].split_whitespace().collect();
    assert_eq!(root, ["1", "200", "0"]);

    let view = json(&arguments);
    assert_eq!(view["rounds"][0]["messages"].as_array().map(Vec::len), Some(2));
    assert_eq!(view["rounds"][1]["messages"][0]["from"], 3);
    assert_eq!(view["rounds"][1]["ranks"][0]["received"], 100);
    assert_eq!(view["totals"][1]["sent"], 200);
}

#[test]
fn a_drawing_has_a_line_per_rank_and_an_arrow_per_message() {
    let drawing = |arguments: &[&str]| shown(&[arguments, &["--stage", "rounds", "--format", "svg"]].concat());
    let svg = drawing(&["allgather", "--algorithm", "ring", "--ranks", "5"]);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("marker-end").count(), 20);
    assert_eq!(svg.matches("<line ").count(), 25);
    assert!(svg.contains("<title>round 3: 4 to 0, message 3, 1024 B</title>"), "{svg}");
    let multicast = drawing(&["allgather", "--algorithm", "multicast", "--ranks", "3"]);
    assert!(multicast.contains("<title>round 0: 2 to 1, multicast, 1024 B</title>"), "{multicast}");
    let huge = ["allgather", "--ranks", "200", "--stage", "rounds", "--format", "svg"];
    assert!(refused(&huge).contains("at most 20000"));
}

#[test]
fn the_goal_schedule_comes_in_again() {
    let arguments = ["allgather", "--topology", "2x2:strided", "--algorithm", "hierarchical", "--stage", "goal"];
    let schedule = shown(&arguments);
    assert!(schedule.starts_with("// allgather, hierarchical"), "{schedule}");
    let import = goal::import(&schedule).expect("a schedule");
    verify(&import.programs, |rank| import.contracts[rank.0 as usize].clone()).expect("messages that arrive");
    let view = json(&arguments);
    assert_eq!(goal::import(view["schedule"].as_str().expect("text")).expect("a schedule"), import);
}

/// CD-4, CD-5: Tables I and II, for ranks 0 and 1 of 4.
#[test]
fn task_lists_are_shown_as_in_the_tables_of_the_paper() {
    let exchange = ["allgather", "--algorithm", "standard-exchange", "--stage", "core-direct", "--protocol"];
    let columns = |protocol: &str| {
        let text = shown(&[&exchange[..], &[protocol]].concat());
        assert!(text.contains("\n6 queue pairs per rank\n"), "{text}");
        let cells = |line: &str| {
            let cells: Vec<String> =
                line.split("  ").map(str::trim).filter(|c| !c.is_empty()).map(Into::into).collect();
            cells
        };
        let mut step = String::new();
        let rows = text.lines().skip(4).map(|line| {
            let mut cells = cells(line);
            if cells[0].starts_with("Step") {
                step = cells.remove(0);
            }
            [step.clone(), cells[0].clone(), cells[1].clone()]
        });
        rows.collect::<Vec<_>>()
    };
    let row = |step: u32, of_0: &str, of_1: &str| [format!("Step {step}"), of_0.to_owned(), of_1.to_owned()];
    let eager = [
        row(0, "recv from 1", "recv from 0"),
        row(0, "send to 1", "send to 0"),
        row(0, "wait (1 recv CQ) from 1", "wait (1 recv CQ) from 0"),
        row(1, "recv from 2", "recv from 3"),
        row(1, "recv from 2", "recv from 3"),
        row(1, "send to 2", "send to 3"),
        row(1, "send to 2", "send to 3"),
        row(1, "wait (2 recv CQ) from 2", "wait (2 recv CQ) from 3"),
    ];
    assert_eq!(columns("eager"), eager);
    let rendezvous = [
        row(0, "recv CTS from 1", "recv CTS from 0"),
        row(0, "wait (1 CTS CQ) from 1", "wait (1 CTS CQ) from 0"),
        row(0, "recv from 1", "recv from 0"),
        row(0, "send to 1", "send to 0"),
        row(0, "wait (1 recv CQ) from 1", "wait (1 recv CQ) from 0"),
        row(1, "recv CTS from 2", "recv CTS from 3"),
        row(1, "wait (1 CTS CQ) from 2", "wait (1 CTS CQ) from 3"),
        row(1, "recv from 2", "recv from 3"),
        row(1, "send to 2", "send to 3"),
        row(1, "wait (1 recv CQ) from 2", "wait (1 recv CQ) from 3"),
    ];
    assert_eq!(columns("rendezvous"), rendezvous);
    let executed = shown(&[&exchange[..], &["rendezvous", "--executed"]].concat());
    let posted = executed.find("enable 1 to receive on data QP of rank 1").expect("the receive is enabled");
    let sent = executed.find("send on CTS QP of rank 1").expect("the clear-to-send is sent");
    let waited = executed.find("wait for 1 received on CTS QP of rank 1").expect("that of the peer is waited for");
    assert!(posted < sent && sent < waited, "{executed}");
}

/// CD-5: blocks from 16 KB on use rendezvous. CD-6: 42, 21 and 6 queue pairs for 128 ranks.
#[test]
fn json_of_task_lists_has_protocol_and_queue_pairs() {
    let lists = |more: &[&str]| json(&[&["allgather", "--stage", "core-direct"], more].concat());
    let small = lists(&["--ranks", "4", "--size", "16383"]);
    assert_eq!((small["protocol"].as_str(), small["buffer"].as_u64()), (Some("eager"), Some(16383)));
    let large = lists(&["--ranks", "4", "--size", "16K"]);
    assert_eq!((large["protocol"].as_str(), large["buffer"].as_u64()), (Some("rendezvous"), None));
    let requests = large["lists"][0]["tasks"].as_array().expect("tasks");
    assert!(requests.iter().any(|task| task["request"] == "receive-enable" && task["queue_pair"] == "data"));
    for (algorithm, expected) in [("bruck", 42), ("standard-exchange", 21), ("ring", 6)] {
        let view = lists(&["--ranks", "128", "--algorithm", algorithm]);
        let all = view["lists"].as_array().expect("lists");
        assert!(all.iter().all(|list| list["queue_pairs"] == expected), "{algorithm}");
    }
}

/// TH-1, TH-6: each rank's descriptors are shown. In a tree a rank has few descriptors, one for all children.
#[test]
fn descriptors_of_an_order_triggered_nic_are_shown() {
    let reduce = ["reduce", "--algorithm", "binomial", "--ranks", "4", "--stage", "ordered"];
    let text = shown(&reduce);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["reduce, binomial, 4 ranks, 1024 B", "1 pulse"]);
    assert_eq!(lines[3], "rank 0: node 0 port 0, sources rank 1, rank 2");
    let root = "  1024 B [CH], copies host[0..1024] into host[1024..2048]";
    assert_eq!(lines[4], root);
    assert_eq!(
        lines[5],
        "  1024 B [CT ReduceFlag CollEndFlag] waits for 2 of step 0 from source 0, sum of f64 with \
         host[1024..2048] on the left into host[1024..2048]"
    );
    let view = json(&[&reduce[..], &["--size", "64K"]].concat());
    assert_eq!(view["pulses"].as_u64(), Some(8));
    assert_eq!(view["posts"][3]["descriptors"].as_array().map(Vec::len), Some(8));
    let answers = shown(&["reduce", "--algorithm", "halving", "--ranks", "4", "--stage", "ordered"]);
    assert!(answers.contains("[CT CP SwapLocalVP ReduceFlag CollEndFlag]"), "who was heard is answered: {answers}");
    let carried = shown(&["allgather", "--algorithm", "bruck", "--size", "64", "--stage", "ordered"]);
    assert!(carried.contains("64 B [CP], sends what it carries as step 0 to node 3 port 0"), "{carried}");
    let direct = shown(&["alltoall", "--algorithm", "pull", "--size", "64K", "--stage", "ordered"]);
    let lines: Vec<&str> = direct.lines().collect();
    assert_eq!(lines[1], "from point to point");
    assert_eq!(lines[5], "  65536 B [SwapRemoteAddr], names host[458752..524288] to node 3 port 0");
    assert_eq!(lines[8], "  65536 B [SwapRemoteData], sends host[65536..131072] to node 1 port 0");
    assert!(refused(&["broadcast", "--algorithm", "multicast", "--stage", "ordered"]).contains("without multicast"));
    assert!(
        refused(&["reduce", "--element-bytes", "3", "--size", "9", "--stage", "ordered"]).contains("1, 2, 4, 8 or 16")
    );
}

/// The output names the algorithms that each engine carries out, and says why the engine rejects the others.
#[test]
fn engines_say_what_they_take() {
    let text = shown(&["engines", "--ranks", "4", "--size", "100K"]);
    let said = |algorithm: &str, line: &str| {
        let after = text.split_once(&format!("\n  {algorithm}\n")).expect("it is listed").1;
        assert!(after.lines().take(6).any(|said| said.trim() == line), "{algorithm}: {after}");
    };
    said("rabenseifner", "service process takes it");
    said("rabenseifner", "ordered         takes it, in 8 pulses");
    said("rabenseifner", "host            takes it");
    said("multi-leader:leaders=2,between=standard-exchange,ports=1", "triggered       takes it, by rendezvous");
    let multicast = "ordered         does not: rank 0 step 0 (receive multicast of rank 2 into output[0..102400]): NICs \
                     send from port to port; choose an algorithm without multicast";
    said("multicast:subgroups=1", multicast);
    said("multicast:subgroups=1", "datapath        takes it");
    said("neighbour-exchange", "ofi-triggered   does not: it goes by ring");
    said("ring", "ofi-triggered   takes it");
    let combined = "ofi-triggered   does not: allreduce: what is combined needs a processor between messages";
    said("rabenseifner", combined);
    let after = text.split_once("\n  rabenseifner\n").expect("it is listed").1;
    assert!(after.lines().take(5).any(|said| said.trim().starts_with("datapath        does not: rank 0 step ")));
}

/// MC Table I, Fig. 13 to 16: model and measurement side by side.
#[test]
fn mc_r_a_datapath_accelerator_is_shown_beside_the_measurements() {
    let text = shown(&["datapath"]);
    for line in ["UC            66     598   11.5      11.9", "UD           113    1084    6.3       5.2"] {
        assert!(text.lines().any(|shown| shown.trim() == line), "{text}");
    }
    assert!(text.contains("128 threads sustain a link of 1.6 Tbit/s, 48.8 of 4 KiB each"), "{text}");
}

/// Plans and schedules are read from files, and errors name the place in malformed files.
#[test]
fn files_are_explained_as_well() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path.to_str().expect("a path of letters").to_owned()
    };
    let exchange = ["allgather", "--algorithm", "standard-exchange"];
    let plan = shown(&exchange);
    let from_file = |path: &str, stage: &str| shown(&["--file", path, "--stage", stage]);
    let behind_title = |shown: String| shown.split_once('\n').expect("a title").1.to_owned();
    let saved = file("exchange.plan", &plan);
    for stage in ["plan", "rounds", "goal"] {
        let of_collective = shown(&[&exchange[..], &["--stage", stage]].concat());
        assert_eq!(behind_title(from_file(&saved, stage)), behind_title(of_collective));
    }
    let schedule = file("exchange.goal", &shown(&[&exchange[..], &["--stage", "goal"]].concat()));
    assert!(from_file(&schedule, "rounds").contains("2 rounds, 8 messages"));
    let lists = json(&["--file", &schedule, "--stage", "core-direct"]);
    assert_eq!((lists["lists"][3]["queue_pairs"].as_u64(), lists["bytes"].as_u64()), (Some(6), Some(2048)));
    assert!(lists["collective"].is_null());

    let said = |name: &str, content: &str, expected: &str| {
        let said = refused(&["--file", &file(name, content)]);
        assert!(said.contains(&format!("{name}: {expected}")), "{said}");
    };
    said("bad.plan", &plan.replace("send", "throw"), "line 8, column 8: expected `send`, `receive`");
    said("bad.goal", "num_ranks 2\nrank 0 {\nsend 8b at 1\n}\n", "line 3, column 9: expected `to`, found `at`");
    assert!(refused(&["--file", "/nowhere.plan"]).contains("read /nowhere.plan: No such file"));
    assert!(refused(&["allgather", "--file", &saved]).contains("cannot be used with"));
    assert!(refused(&["--file", &saved, "--stage", "ordered"]).contains("name a collective"));
}

#[test]
fn what_does_not_fit_is_refused_with_the_choices() {
    let said = |arguments: &[&str], expected: &str| {
        let said = refused(arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    };
    said(
        &["gossip"],
        "possible values: allgather, allreduce, alltoall, barrier, broadcast, exscan, gather, reduce, reduce-scatter, scan, \
         scatter",
    );
    said(&["allgather", "--stage", "nowhere"], "possible values: plan, rounds, goal, core-direct, ordered");
    said(&["allgather", "--format", "png"], "possible values: text, json, svg");
    said(&["allgather", "--algorithm", "gossip"], "choose one of ring, neighbour-exchange, standard-exchange, bruck");
    said(
        &["allgather", "--ports", "2"],
        "ring has no ports; of the allgather algorithms these have: standard-exchange",
    );
    said(&["broadcast", "--ports", "2"], "these have: none");
    said(&["allgather", "--algorithm", "bruck", "--ports", "0"], "a number from 1");
    said(&["broadcast", "--root", "4"], "--root 4: ranks are 0 to 3");
    said(
        &["alltoall", "--root", "1"],
        "alltoall has no root; of the collectives these have: broadcast, gather, reduce, scatter",
    );
    said(&["barrier", "--size", "1K"], "barrier moves no bytes");
    said(&["scan", "--size", "1002"], "whole elements, and --element-bytes is 8");
    said(&["gather", "--element-bytes", "4"], "gather combines no elements");
    said(&["allreduce", "--ports", "2"], "of the allreduce algorithms these have: none");
    said(&["reduce", "--algorithm", "gossip"], "choose one of binomial, halving");
    said(&["allgather", "--ranks", "0"], "1 to 65535 ranks");
    said(&["allgather", "--topology", "2by2"], "as 4x2 or 4x2:strided");
    said(&["allgather", "--topology", "2x2", "--ranks", "5"], "which has 4 ranks");
    said(&["allgather", "--size", "much"], "much");
    said(&["allgather", "--format", "svg"], "--stage rounds");
    said(&["allgather", "--protocol", "eager"], "--stage core-direct");
    said(&["allgather", "--ranks", "65535"], "choose fewer ranks");
    said(&["allgather", "--algorithm", "multicast", "--stage", "core-direct"], "without multicast");
    let endless = ["allgather", "--ranks", "64", "--size", "1G", "--stage", "core-direct", "--protocol", "eager"];
    said(&endless, "choose --protocol rendezvous");
    said(&["alltoall", "--algorithm", "bruck", "--stage", "core-direct"], "stands between messages");
}

/// Every number of a profile has its source. A file can replace the name; an error names its line.
#[test]
fn numbers_of_profiles_are_shown_with_their_sources() {
    for name in ["bluefield3", "cluster-a", "cluster-b", "tianhe"] {
        let text = shown(&["profile", name]);
        assert!(text.starts_with(name) && text.contains("[machine]"), "{text}");
        let numbers = text.lines().skip(1).filter(|line| !line.is_empty() && !line.starts_with('['));
        assert!(numbers.clone().count() >= 10);
        let sourced = ["fitted", "assumed", "MC "];
        numbers.for_each(|line| assert!(sourced.iter().any(|source| line.contains(source)), "{line}"));
    }
    let said = refused(&["profile", "nowhere"]);
    assert!(said.contains("one of bluefield3, cluster-a, cluster-b, tianhe"), "{said}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "name = \"x\"\n[machine]\nsend = { value = -1, source = \"ours\" }\n")
        .expect("written");
    let said = refused(&["profile", file.path().to_str().expect("a path")]);
    assert!(said.contains(":3: `send` is -1: it has to be finite and at least 0"), "{said}");
}
