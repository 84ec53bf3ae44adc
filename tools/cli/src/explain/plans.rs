//! The plan that the command line selects.

use std::fmt;
use std::path::Path;

use clap::ValueEnum as _;
use outboard_plan::selection::Choice;
use outboard_plan::{AlgorithmSettingError, Arguments, MAX_RANKS, Op, Program, Rank, Topology, program};
use outboard_plan_tools::{goal, text};
use outboard_units::Size;

use super::PlanArgs;
use super::collective::{Counts, PlanCollective};
use crate::error::CliError;

/// Default number of ranks of a group.
const DEFAULT_RANKS: u32 = 4;
/// Default number of bytes.
const DEFAULT_SIZE: Size = Size(1 << 10);
/// Default number of bytes of an element: a double.
const DEFAULT_ELEMENT_BYTES: u64 = 8;
/// The most steps of all ranks together; longer plans are of no use to a reader.
const MAX_STEPS: usize = 4_000_000;

/// A plan, and the call that it carries out.
pub(crate) struct ShownPlan {
    /// The collective, and its algorithm with settings; `None` for a file.
    pub(crate) of: Option<(String, String)>,
    /// The call of the plan; `None` for a file.
    pub(crate) call: Option<PlannedCall>,
    /// Bytes of a block, or of the whole vector; for a file bytes of its largest message.
    pub(crate) bytes: u64,
    /// A title of one line.
    pub(crate) title: String,
    /// The programs, by rank.
    pub(crate) programs: Vec<Program>,
}

/// A call, and how it is carried out.
pub(crate) struct PlannedCall {
    pub(crate) choice: Choice,
    pub(crate) topology: Topology,
    root: Rank,
    /// Bytes, as [`Arguments`] counts them.
    bytes: u64,
    pub(crate) element_bytes: u64,
    exclusive: bool,
}

impl PlannedCall {
    pub(crate) fn arguments(&self) -> Arguments<'_> {
        Arguments {
            root: self.root,
            element_bytes: self.element_bytes,
            exclusive: self.exclusive,
            ..Arguments::of(&self.topology, self.bytes)
        }
    }
}

/// The plan that `args` select.
pub(crate) fn plan(args: &PlanArgs) -> Result<ShownPlan, CliError> {
    let collective = match (&args.file, args.collective) {
        (Some(path), _) => return file(path),
        (None, collective) => {
            collective.expect("clap asks for a collective where there is neither file nor subcommand")
        }
    };
    let topology = topology(args)?;
    let ranks = topology.ranks();
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(CliError::Failed(format!("--ranks {ranks}: a group has 1 to {MAX_RANKS} ranks")));
    }
    let root = root(args, collective, ranks)?;
    let bytes = bytes(args, collective)?;
    if args.element_bytes.is_some() && !collective.reduces() {
        return Err(CliError::Failed(format!("--element-bytes: {} combines no elements", collective.name())));
    }
    let choice = choice(args, collective)?;
    let element_bytes = args.element_bytes.map_or(DEFAULT_ELEMENT_BYTES, |Size(bytes)| bytes);
    if collective.reduces() && (element_bytes == 0 || !bytes.is_multiple_of(element_bytes)) {
        return Err(CliError::Failed(format!(
            "--size {bytes}: a reduction combines whole elements, and --element-bytes is {element_bytes}"
        )));
    }
    let blocks = if collective == PlanCollective::ReduceScatter { u64::from(ranks) } else { 1 };
    let whole = bytes.checked_mul(blocks).ok_or_else(|| too_large(ranks, bytes))?;
    let call =
        PlannedCall { choice, topology, root, bytes: whole, element_bytes, exclusive: collective.is_exclusive() };
    let programs = programs(choice, &call.arguments())?;
    let algorithm = choice.effective_for(ranks).to_string();
    let size = match collective.counts() {
        Counts::Nothing => String::new(),
        Counts::Block => format!(", {bytes} B per block"),
        Counts::Whole => format!(", {bytes} B"),
    };
    let collective = collective.name();
    let title = format!("{collective}, {algorithm}, {ranks} ranks{size}");
    Ok(ShownPlan { of: Some((collective, algorithm)), call: Some(call), bytes, title, programs })
}

/// The plan in a file, in either of two formats.
fn file(path: &Path) -> Result<ShownPlan, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(CliError::system(format!("read {shown}")))?;
    let inside = |error: &dyn fmt::Display| CliError::Failed(format!("{shown}: {error}"));
    let is_goal = text.lines().any(|line| line.trim_start().starts_with("num_ranks"));
    let programs = if is_goal {
        goal::import(&text).map_err(|error| inside(&error))?.programs
    } else {
        text::parse(&text).map_err(|error| inside(&error))?
    };
    let reads = programs.iter().flat_map(|program| &program.steps).filter_map(|step| match step.op {
        Op::Send { span, .. } | Op::Multicast { span } => Some(span.len),
        Op::Recv { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => None,
    });
    let bytes = reads.max().unwrap_or(0);
    let title = format!("{shown}, {} ranks, messages of up to {bytes} B", programs.len()).replace('\n', " ");
    Ok(ShownPlan { of: None, call: None, bytes, title, programs })
}

fn too_large(ranks: u32, bytes: u64) -> CliError {
    CliError::Failed(format!("{ranks} blocks of {bytes} bytes exceed 64 bits"))
}

/// The algorithm that was given, or the collective's first algorithm.
fn choice(args: &PlanArgs, collective: PlanCollective) -> Result<Choice, CliError> {
    let all = collective.chosen_as().algorithms();
    let mut choice = match &args.algorithm {
        Some(text) => Choice::read(collective.chosen_as(), text).map_err(CliError::failed)?,
        None => all[0],
    };
    let Some(ports) = args.ports else { return Ok(choice) };
    match choice.set("ports", &ports.to_string()) {
        Ok(()) => Ok(choice),
        Err(error @ AlgorithmSettingError::Value { .. }) => {
            Err(CliError::Failed(format!("--ports {ports} for {choice}: {error}")))
        }
        Err(AlgorithmSettingError::Unknown) => {
            let has_ports = |other: &&Choice| { **other }.set("ports", "1").is_ok();
            let with: Vec<&str> = all.iter().filter(has_ports).map(|other| other.name()).collect();
            let with = if with.is_empty() { "none".to_owned() } else { with.join(", ") };
            Err(CliError::Failed(format!(
                "--ports: {} has no ports; of the {} algorithms these have: {with}",
                choice.name(),
                choice.collective()
            )))
        }
    }
}

/// The programs of all ranks, if they are short enough to be read.
fn programs(choice: Choice, arguments: &Arguments<'_>) -> Result<Vec<Program>, CliError> {
    let (mut steps, ranks) = (0, arguments.topology.ranks());
    let mut programs = Vec::new();
    for rank in (0..ranks).map(Rank) {
        let program = program(choice, arguments, rank).map_err(CliError::failed)?;
        steps += program.steps.len();
        if steps > MAX_STEPS {
            return Err(CliError::Failed(format!(
                "the first {} of {ranks} ranks have more than {MAX_STEPS} steps: choose fewer ranks or a smaller --size",
                rank.0 + 1,
            )));
        }
        programs.push(program);
    }
    Ok(programs)
}

/// The root; 0 by default.
fn root(args: &PlanArgs, collective: PlanCollective, ranks: u32) -> Result<Rank, CliError> {
    match args.root {
        Some(_) if !collective.has_root() => {
            let rooted: Vec<String> = PlanCollective::value_variants()
                .iter()
                .filter(|other| other.has_root())
                .map(|other| other.name())
                .collect();
            let (name, rooted) = (collective.name(), rooted.join(", "));
            Err(CliError::Failed(format!("--root: {name} has no root; of the collectives these have: {rooted}")))
        }
        Some(root) if root >= ranks => Err(CliError::Failed(format!("--root {root}: ranks are 0 to {}", ranks - 1))),
        root => Ok(Rank(root.unwrap_or(0))),
    }
}

/// The bytes of a block or of the whole vector.
fn bytes(args: &PlanArgs, collective: PlanCollective) -> Result<u64, CliError> {
    match &args.size {
        Some(_) if collective.counts() == Counts::Nothing => {
            Err(CliError::Failed(format!("--size: {} moves no bytes", collective.name())))
        }
        None if collective.counts() == Counts::Nothing => Ok(0),
        size => Ok(size.unwrap_or(DEFAULT_SIZE).0),
    }
}

/// The assignment of ranks to hosts.
fn topology(args: &PlanArgs) -> Result<Topology, CliError> {
    let Some(text) = &args.topology else {
        return Ok(Topology::flat(args.ranks.unwrap_or(DEFAULT_RANKS)));
    };
    let wrong = || {
        CliError::Failed(format!(
            "--topology {text}: write hosts and ranks of each as 4x2 or 4x2:strided, or the ranks of every host as 2,2,3; \
             a group has 1 to {} ranks",
            MAX_RANKS
        ))
    };
    let hosts = hosts(text).ok_or_else(wrong)?;
    if let Some(ranks) = args.ranks.filter(|ranks| *ranks as usize != hosts.len()) {
        return Err(CliError::Failed(format!(
            "--ranks {ranks} and --topology {text}, which has {} ranks: make them equal or leave one out",
            hosts.len()
        )));
    }
    Topology::of_hosts(hosts).ok_or_else(wrong)
}

/// The host of every rank.
fn hosts(text: &str) -> Option<Vec<u32>> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| (1..=MAX_RANKS).contains(number));
    let (shape, layout) = text.split_once(':').unwrap_or((text, "contiguous"));
    let hosts: Vec<u32> = if let Some((hosts, each)) = shape.split_once('x') {
        let (hosts, each) = (number(hosts)?, number(each)?);
        let ranks = hosts.checked_mul(each).filter(|ranks| *ranks <= MAX_RANKS)?;
        match layout {
            "contiguous" => (0..ranks).map(|rank| rank / each).collect(),
            "strided" => (0..ranks).map(|rank| rank % hosts).collect(),
            _ => return None,
        }
    } else {
        let counts: Vec<u32> = shape.split(',').map(number).collect::<Option<_>>()?;
        let ranks: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        if ranks > MAX_RANKS.into() || layout != "contiguous" {
            return None;
        }
        (0..).zip(&counts).flat_map(|(host, count)| (0..*count).map(move |_| host)).collect()
    };
    Some(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_people_write_them() {
        assert_eq!(hosts("2x3"), Some(vec![0, 0, 0, 1, 1, 1]));
        assert_eq!(hosts("2x3:strided"), Some(vec![0, 1, 0, 1, 0, 1]));
        assert_eq!(hosts("2,1,3"), Some(vec![0, 0, 1, 2, 2, 2]));
        for nonsense in ["", "x", "0x2", "2x", "2,,3", "2x2:sideways", "2,2:strided", "65535x2", "65535,1", "-1"] {
            assert_eq!(hosts(nonsense), None, "{nonsense}");
        }
    }
}
