//! `outboard explain choice`: shows which algorithm a call gets, why, and the times of the others.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard_plan::selection::{
    Candidate, Case, ChoiceReason, Chosen, Collective, CostTerms, Links, Rate, Rule, Size, Tuning, WORTH,
};
use outboard_service::settings::{EAGER_BYTES, read_tuning};

use crate::algorithm::chosen;
use crate::error::CliError;

/// Calls of more ranks than this are not played: their programs would fill the memory.
const MOST_PLAYED: u32 = 256;

/// The source of a tuning without a tuning file.
const UNTUNED: &str = "none: what daemons do without a tuning file";

/// The call whose algorithm is explained.
#[derive(Debug, Args)]
pub(crate) struct ChoiceArgs {
    /// allgather, broadcast, alltoall, gather, scatter, barrier, reduce, allreduce, reduce-scatter or scan
    #[arg(required_unless_present = "report")]
    collective: Option<Collective>,
    /// Show what the MPI shim chose in a run, and why; the file is the one that OUTBOARD_MPI_REPORT named
    #[arg(long, exclusive = true)]
    report: Option<PathBuf>,
    /// Ranks of the group
    #[arg(long, required_unless_present = "report", value_parser = clap::value_parser!(u32).range(1..=i64::from(outboard_plan::MAX_RANKS)))]
    ranks: Option<u32>,
    /// Hosts of these ranks; by default one for each rank
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: Option<u32>,
    /// Bytes of the vector, of the root's buffer, or of each rank's block
    #[arg(long, default_value = "0")]
    size: Size,
    /// Tuning file of the daemons
    #[arg(long, env = "OUTBOARD_TUNING")]
    tuning: Option<PathBuf>,
    /// The daemons do not use multicast
    #[arg(long)]
    no_multicast: bool,
    /// Rate of the slowest host's link; a tuning file has its own rates
    #[arg(long, default_value = "1gbit")]
    link_rate: Rate,
    /// Also play the actual programs event by event
    #[arg(long)]
    play: bool,
}

pub(crate) fn choice(args: &ChoiceArgs) -> Result<ExitCode, CliError> {
    if let Some(report) = &args.report {
        return crate::choice::explain(report);
    }
    let (Some(collective), Some(ranks)) = (args.collective, args.ranks) else {
        return Err(CliError::Failed("name a collective and --ranks, or a --report".to_owned()));
    };
    let hosts = args.hosts.unwrap_or(ranks);
    if hosts > ranks {
        return Err(CliError::Failed(format!("{ranks} ranks are not on {hosts} hosts: name at most as many")));
    }
    if args.play && ranks > MOST_PLAYED {
        return Err(CliError::Failed(format!("{ranks} ranks are too many to play: name at most {MOST_PLAYED}")));
    }
    let multicast = !args.no_multicast || hosts == 1;
    let links = Links::between(hosts, args.link_rate);
    let case = Case { collective, ranks, hosts, bytes: args.size.0, multicast, links };
    let (tuning, source) = match &args.tuning {
        Some(path) => {
            let tuning = read_tuning(path).map_err(CliError::failed)?;
            let source = format!("{}, digest {:08x}", path.display(), tuning.digest());
            (tuning, source)
        }
        None => (Tuning::untuned(case.links), UNTUNED.to_owned()),
    };
    print!("{}", report(&tuning, &source, &case, args.play));
    Ok(ExitCode::SUCCESS)
}

fn report(tuning: &Tuning, source: &str, case: &Case, play: bool) -> String {
    let Case { collective, ranks, hosts, bytes, .. } = *case;
    let tuned = source != UNTUNED;
    let (choice, small) = chosen(tuned.then_some(tuning), case, false);
    let by_size = tuning.choose(case);
    let because = match by_size.choice == choice {
        true => reason(tuning, source, case, &by_size),
        false => format!("it moves at most {EAGER_BYTES} in all (--eager-bytes): its messages go without a barrier"),
    };
    let mut text = format!("{collective} of {} among {ranks} ranks on {hosts} hosts\n", Size(bytes));
    text += &format!("tuning  {source}\nchosen  {choice}\nbecause {because}\n\n");
    // A small call does not use multicast, unless a tuning chooses it.
    let case = &Case { multicast: case.multicast && (tuned || !small), ..*case };
    let by_hand = tuning.candidate(case, choice).filter(|_| !collective.choices().contains(&choice));
    let mut all: Vec<Candidate> = tuning.candidates(case).chain(by_hand).collect();
    all.sort_by_key(|candidate| candidate.time);
    let played_head = if play { "played" } else { "" };
    let name = all.iter().map(|candidate| candidate.choice.to_string().len()).max().unwrap_or(0);
    text += &format!(
        "  {:<name$} {:>12} {:>9} {:>8} {:>7} {:>12} {:>12} {:>12} {:>12}  {played_head}\n",
        "algorithm", "time", "latencies", "messages", "control", "sent", "multicast", "copied", "reduced"
    );
    for Candidate { choice: candidate, terms, time } in all {
        let mark = if candidate == choice { '*' } else { ' ' };
        let CostTerms { latencies, messages, controls, sent, multicast, copied, reduced } = terms;
        let played = if play { played(tuning, case, candidate) } else { String::new() };
        let row = format!(
            "{mark} {:<name$} {:>12} {latencies:>9} {messages:>8} {controls:>7} {sent:>12} {multicast:>12} {copied:>12} \
             {reduced:>12}  {played}",
            candidate.to_string(),
            time.to_string(),
        );
        text += row.trim_end();
        text.push('\n');
    }
    text
}

fn played(tuning: &Tuning, case: &Case, choice: outboard_plan::selection::Choice) -> String {
    let time = outboard_plan_tools::played(case, choice, &tuning.cost).and_then(Result::ok);
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

fn reason(tuning: &Tuning, source: &str, case: &Case, chosen: &Chosen) -> String {
    let collective = case.collective;
    match chosen.reason {
        ChoiceReason::Fastest if source != UNTUNED && tuning.rules.contains_key(&collective) => {
            format!(
                "the cost model finds it fastest, and no [[choice.{collective}]] applies that can be carried out here"
            )
        }
        ChoiceReason::Pulled if case.hosts == 1 => "within a host blocks are copied as ranks call".to_owned(),
        ChoiceReason::Pulled => {
            format!("late ranks hold up nobody else, and the cost model finds nothing {WORTH} times as fast")
        }
        ChoiceReason::Fastest => "the cost model finds it fastest".to_owned(),
        ChoiceReason::Rule(index) => {
            let rules = tuning.rules.get(&collective).map_or(&[][..], Vec::as_slice);
            let bounds = rules.get(index).map(bounds).unwrap_or_default();
            if source == UNTUNED {
                return format!("daemons without a tuning file do so{bounds}");
            }
            format!("[[choice.{collective}]] number {} says so{bounds}", index + 1)
        }
    }
}

/// The limits of a rule, as text.
fn bounds(rule: &Rule) -> String {
    let bytes = rule.up_to.map(|most| format!("up to {most}"));
    let ranks = rule.ranks.map(|most| format!("up to {most} ranks"));
    let both: Vec<String> = bytes.into_iter().chain(ranks).collect();
    if both.is_empty() { String::new() } else { format!(", {}", both.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_shows_choice_and_reason() {
        let text = "[[choice.allreduce]]\nup-to = \"4 KiB\"\nranks = 8\nalgorithm = \"rabenseifner\"\n";
        let tuning: Tuning = text.parse().expect("valid");
        let case = Case {
            collective: Collective::Allreduce,
            ranks: 8,
            hosts: 4,
            bytes: 4096,
            multicast: true,
            links: Links::Slow,
        };
        let by_hand = report(&tuning, "a file", &case, true);
        let said = "chosen  rabenseifner\nbecause [[choice.allreduce]] number 1 says so, up to 4 KiB and up to 8 ranks";
        assert!(by_hand.contains(said), "{by_hand}");
        assert!(by_hand.lines().any(|line| line.starts_with("* rabenseifner ")), "{by_hand}");
        assert!(by_hand.contains("  recursive-doubling"), "{by_hand}");
        let by_cost = report(&tuning, "a file", &Case { bytes: 1 << 20, ..case }, false);
        assert!(by_cost.contains("no [[choice.allreduce]] applies"), "{by_cost}");
        let untuned = |bytes| {
            let case = Case { collective: Collective::Broadcast, bytes, ..case };
            report(&Tuning::untuned(Links::Slow), UNTUNED, &case, false)
        };
        let large = untuned(1 << 20);
        assert!(large.contains("chosen  multicast:subgroups=1\nbecause daemons without"), "{large}");
        let small = untuned(4096);
        assert!(small.contains("chosen  binomial\nbecause it moves at most 16 KiB in all"), "{small}");
        assert!(small.contains("\n* binomial ") && !small.contains("  multicast:"), "{small}");
    }
}
