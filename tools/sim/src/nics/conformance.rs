//! One test suite for all engines: every algorithm that an engine accepts must end with the bits of its plan.

use std::fmt;
use std::ops::Range;

use outboard_nic::datapath::Transport;
use outboard_nic::triggered::list::TransferProtocol;
use outboard_nic::{datapath, host, ordered, triggered};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Arguments, Element, Operator, Rank, Reduction, Topology, deferred};
use outboard_plan_tools as tools;

use super::service::on_lists;
use super::{EngineSettings, JobPlan, NicCall, NicPlan, PreparedPlan, service_process};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// The service process: `outboardd`.
    ServiceProcess,
    Triggered,
    Ordered,
    Datapath,
    Host,
    /// libfabric's deferred work beside the service process: `outboardd --engine ofi-triggered`.
    OfiTriggered,
}

impl EngineKind {
    pub const ALL: [EngineKind; 6] = [
        EngineKind::ServiceProcess,
        EngineKind::Triggered,
        EngineKind::Ordered,
        EngineKind::Datapath,
        EngineKind::Host,
        EngineKind::OfiTriggered,
    ];

    /// Describes how the engine carries out a call, if there is anything to add, or why the engine rejects the call.
    pub fn takes(self, hosts: &[u32], call: &NicCall) -> Result<String, String> {
        let topology = Topology::of_hosts(hosts.iter().copied()).expect("at most as many as a group has");
        call.with_arguments(&topology, |arguments| self.takes_with(call.choice, arguments))
    }

    fn takes_with(self, choice: Choice, arguments: &Arguments<'_>) -> Result<String, String> {
        match self {
            EngineKind::ServiceProcess => choice.collective().read(&choice.to_string()).map(|_| String::new()),
            EngineKind::Triggered => {
                let mut communicator =
                    tools::triggered::Communicator::new(arguments.topology, triggered::TriggeredSettings::default());
                let lowered = communicator.call(choice, arguments).map_err(|error| error.to_string())?;
                Ok(match lowered.templates.first().map(|template| template.protocol) {
                    Some(TransferProtocol::Eager { .. }) | None => "eager".to_owned(),
                    Some(TransferProtocol::Rendezvous | TransferProtocol::Retry) => "by rendezvous".to_owned(),
                })
            }
            EngineKind::Ordered => {
                let lowered = tools::ordered::lower(choice, arguments, &ordered::OrderedSettings::default());
                match lowered.map_err(|error| error.to_string())?.pulses() {
                    0 => Ok("from point to point".to_owned()),
                    1 => Ok(String::new()),
                    pulses => Ok(format!("in {pulses} pulses")),
                }
            }
            EngineKind::Datapath => {
                let lowered = tools::datapath::lower(choice, arguments, &datapath::DatapathSettings::default());
                lowered.map(|_| String::new()).map_err(|error| error.to_string())
            }
            EngineKind::Host => {
                tools::host::lower(choice, arguments).map(|_| String::new()).map_err(|error| error.to_string())
            }
            EngineKind::OfiTriggered => {
                match deferred::choice(choice.collective(), arguments.topology.ranks(), arguments.bytes) {
                    Ok(own) if own == choice => Ok(String::new()),
                    Ok(own) => Err(format!("it goes by {own}")),
                    Err(why) => Err(why.to_string()),
                }
            }
        }
    }

    /// Carries out a call that the engine accepts, and judges the result.
    fn carry_out(self, hosts: &[u32], call: NicCall) -> Result<(), String> {
        match self {
            EngineKind::ServiceProcess => match service_process(hosts, &call) {
                Ok(true) => Ok(()),
                Ok(false) => Err("other bits than those of the plan".to_owned()),
                Err(failure) => Err(failure.to_string()),
            },
            EngineKind::Triggered => play(hosts, call, triggered::TriggeredSettings::default(), 0, 0..2),
            EngineKind::Ordered => play(hosts, call, ordered::OrderedSettings::default(), 0, 0..2),
            EngineKind::Datapath => {
                let settings = datapath::DatapathSettings::default();
                let writes = datapath::DatapathSettings { transport: Transport::Writes { packets: 4 }, ..settings };
                play(hosts, call, settings, 0, 0..1)?;
                play(hosts, call, settings, 200, 1..2)?;
                play(hosts, call, writes, 200, 2..3)
            }
            EngineKind::Host => {
                let settings = host::HostSettings::default();
                play(hosts, call, settings, 0, 0..1)?;
                play(hosts, call, host::HostSettings { progress: host::ProgressMode::Thread, ..settings }, 0, 1..2)
            }
            EngineKind::OfiTriggered => on_lists(hosts, &call),
        }
    }
}

/// Plays a call from these seeds. `loss` of a thousand multicast packets are lost.
fn play<S: EngineSettings>(
    hosts: &[u32],
    call: NicCall,
    settings: S,
    loss: usize,
    mut seeds: Range<u64>,
) -> Result<(), String> {
    let jobs = vec![JobPlan { nodes: hosts.to_vec(), calls: vec![call] }];
    let plan = NicPlan { jobs, settings, death: None };
    let prepared = PreparedPlan::new(&plan).map_err(|error| error.to_string())?.losing(loss);
    seeds.try_for_each(|seed| prepared.play(seed).map(|_| ()).map_err(|violation| format!("seed {seed}: {violation}")))
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EngineKind::ServiceProcess => "service process",
            EngineKind::Triggered => "triggered",
            EngineKind::Ordered => "ordered",
            EngineKind::Datapath => "datapath",
            EngineKind::Host => "host",
            EngineKind::OfiTriggered => "ofi-triggered",
        })
    }
}

/// The call of `bytes` bytes by `choice` among `ranks` ranks: sums of doubles, in whole elements and even blocks.
pub fn call_of(choice: Choice, ranks: u32, bytes: u64) -> NicCall {
    let collective = choice.collective();
    let combines =
        matches!(collective, Collective::Reduce | Collective::Allreduce | Collective::ReduceScatter | Collective::Scan);
    let sum = Reduction::new(Operator::Sum, Element::F64).expect("defined by MPI");
    let unit = match collective {
        Collective::ReduceScatter => 8 * u64::from(ranks),
        _ if combines => 8,
        _ => 1,
    };
    let bytes = if collective == Collective::Barrier { 0 } else { bytes / unit * unit };
    NicCall { root: Rank(ranks / 2), ..NicCall::new(choice, bytes, combines.then_some(sum)) }
}

/// Carries out every algorithm of every collective that `engine` accepts, with ranks on these hosts. Returns the number
/// of algorithms carried out.
pub fn conformance(engine: EngineKind, hosts: &[u32], bytes: u64) -> Result<usize, String> {
    let mut carried_out = 0;
    for choice in Collective::ALL.into_iter().flat_map(Collective::algorithms) {
        let call = call_of(choice, hosts.len() as u32, bytes);
        if engine.takes(hosts, &call).is_ok() {
            let wrong = |what| format!("{} by {choice} on {engine}, hosts {hosts:?}: {what}", choice.collective());
            engine.carry_out(hosts, call).map_err(wrong)?;
            carried_out += 1;
        }
    }
    Ok(carried_out)
}
