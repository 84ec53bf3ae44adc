//! Promises of a collective: the contributions that meet in every byte of output, and their order.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::memory::ValueRun;
use super::values::ValueTrees;
use super::{Contract, SymbolicMemory, VerifyError, check};
use outboard_plan::{Buffer, Rank, Span};

/// The ranks whose contributions are combined, from left to right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contributors {
    /// `count` ranks from `first` upwards; rank 0 follows the last rank of the group.
    Round {
        first: Rank,
        count: u32,
    },
    Listed(Arc<[Rank]>),
}

/// A span of `Output` that holds a combination of contributions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromisedSpan {
    pub span: Span,
    /// The byte of every contribution at which the span begins.
    pub from: u64,
    pub of: Contributors,
}

impl PromisedSpan {
    /// The contribution of `source` alone, from byte `from` on.
    pub fn of_one(span: Span, source: Rank, from: u64) -> PromisedSpan {
        PromisedSpan { span, from, of: Contributors::Round { first: source, count: 1 } }
    }
}

impl Contributors {
    fn ranks(&self, of: u32) -> impl Iterator<Item = Rank> + '_ {
        let count = match self {
            Contributors::Round { count, .. } => *count as usize,
            Contributors::Listed(ranks) => ranks.len(),
        };
        (0..count).map(move |i| match self {
            Contributors::Round { first, .. } => Rank(((u64::from(first.0) + i as u64) % u64::from(of)) as u32),
            Contributors::Listed(ranks) => ranks[i],
        })
    }
}

/// A defect in the contributions to some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContributionFault {
    Missing(Rank),
    Twice(Rank),
    Stranger(Rank),
    Order { found: Rank, expected: Rank },
}

impl fmt::Display for ContributionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContributionFault::Missing(rank) => write!(f, "what {rank} contributes is missing"),
            ContributionFault::Twice(rank) => write!(f, "what {rank} contributes is there twice"),
            ContributionFault::Stranger(rank) => write!(f, "what {rank} contributes does not belong there"),
            ContributionFault::Order { found, expected } => {
                write!(f, "what {found} contributes stands where that of {expected} belongs")
            }
        }
    }
}

/// Compares the contents of all outputs with the promises of the contracts.
pub(super) fn outcomes(
    memories: &[SymbolicMemory],
    values: &ValueTrees,
    contract: impl Fn(Rank) -> Contract,
) -> Result<(), VerifyError> {
    let mut last: Option<(Vec<PromisedSpan>, Vec<ValueRun>)> = None;
    for (rank, memory) in (0u32..).map(Rank).zip(memories) {
        let contract = contract(rank);
        let found = outcome(rank, memory, &contract)?;
        match &last {
            Some((same, runs)) if *same == contract.after => {
                if let Some(at) = runs.iter().zip(&found).position(|(a, b)| a != b) {
                    // If a collective only moves data, a difference is an error by itself.
                    if contract.element_bytes.is_none() {
                        contributions(rank, values, memories.len() as u32, &contract, &found)?;
                    }
                    let offset = found[..at].iter().map(|run| run.len).sum();
                    return Err(VerifyError::Differs { rank, other: Rank(rank.0 - 1), offset });
                }
            }
            _ => {
                contributions(rank, values, memories.len() as u32, &contract, &found)?;
                last = Some((contract.after, found));
            }
        }
    }
    Ok(())
}

/// The contents of a rank's promised spans, concatenated; an error if its output holds anything else.
fn outcome(rank: Rank, memory: &SymbolicMemory, contract: &Contract) -> Result<Vec<ValueRun>, VerifyError> {
    let mut output = memory.buffers[Buffer::Output as usize].clone();
    let mut found = Vec::new();
    for PromisedSpan { span, from, .. } in contract.after.iter().filter(|c| !c.span.is_empty()) {
        let range = span.offset..check::end_of(*span);
        let runs = output.read(range.clone()).map_err(|offset| VerifyError::Missing { rank, offset })?;
        let mut passed = 0;
        for run in &runs {
            let (offset, expected) = (span.offset + passed, from + passed);
            if run.from != expected {
                return Err(VerifyError::WrongElement { rank, offset, found: run.from, expected });
            }
            passed += run.len;
        }
        output.erase(range);
        found.extend(runs);
    }
    // In a call in place, the memory behind the output may hold more of the rank's own contribution.
    output.erase(contract.output_bytes..u64::MAX);
    output.first().map_or(Ok(found), |offset| Err(VerifyError::Stray { rank, offset }))
}

/// Compares the contributions to `runs`, the result of [`outcome`], with the promise of the contract.
fn contributions(
    rank: Rank,
    values: &ValueTrees,
    ranks: u32,
    contract: &Contract,
    runs: &[ValueRun],
) -> Result<(), VerifyError> {
    let mut runs = runs.iter();
    for PromisedSpan { span, of, .. } in &contract.after {
        let mut passed = 0;
        while passed < span.len {
            let run = runs.next().expect("the runs fill the spans");
            if !values.ranks_of(run.value).eq(of.ranks(ranks)) {
                let expected: Vec<Rank> = of.ranks(ranks).collect();
                let found: Vec<Rank> = values.ranks_of(run.value).take(2 * expected.len() + 2).collect();
                return Err(VerifyError::Contribution {
                    rank,
                    offset: span.offset + passed,
                    fault: fault(&found, &expected),
                });
            }
            passed += run.len;
        }
    }
    Ok(())
}

/// The reason why two different sequences differ; superfluous and missing ranks are found before wrong order.
fn fault(found: &[Rank], expected: &[Rank]) -> ContributionFault {
    let wanted: BTreeSet<Rank> = expected.iter().copied().collect();
    let mut seen = BTreeSet::new();
    for rank in found {
        if !seen.insert(*rank) {
            return ContributionFault::Twice(*rank);
        }
        if !wanted.contains(rank) {
            return ContributionFault::Stranger(*rank);
        }
    }
    if let Some(missing) = wanted.difference(&seen).next() {
        return ContributionFault::Missing(*missing);
    }
    let differing = found.iter().zip(expected).find(|(found, expected)| found != expected);
    let (found, expected) = differing.expect("the same ranks in another order differ somewhere");
    ContributionFault::Order { found: *found, expected: *expected }
}
