//! Texts that claim to be plans, schedules or profiles. A text is rejected with a place in the text, or accepted. An
//! accepted plan or schedule can be written and read again. An accepted profile has costs, and no cost is below zero.

use outboard_nic::profile::Profile;
use outboard_plan_tools::goal::{self, GoalCosts, GoalReason};
use outboard_plan_tools::{Contract, VerifyError, text, verify};

/// The verifier checks schedules of at most this many ranks, because more ranks take long and show nothing new.
const VERIFIED_RANKS: usize = 16;

/// A text that may be a plan.
pub fn plan(bytes: &[u8]) {
    let written = String::from_utf8_lossy(bytes);
    match text::parse(&written) {
        Ok(programs) => {
            let again = text::parse(&text::print(&programs));
            assert_eq!(again.as_ref(), Ok(&programs));
            let promise = |input_bytes, output_bytes| Contract {
                element_bytes: None,
                input_bytes,
                output_bytes,
                before: Vec::new(),
                after: Vec::new(),
            };
            // Any verdict will do, but there must be one.
            let _ = verify(&programs, |rank| {
                let program = &programs[rank.0 as usize];
                promise(program.input_bytes, program.output_bytes)
            });
        }
        Err(error) => inside(&written, error.at.line),
    }
}

/// A text that may be a GOAL schedule.
pub fn schedule(bytes: &[u8]) {
    let written = String::from_utf8_lossy(bytes);
    match goal::import(&written) {
        Ok(import) => {
            if import.programs.len() <= VERIFIED_RANKS {
                let verdict = verify(&import.programs, |rank| import.contracts[rank.0 as usize].clone());
                assert!(matches!(verdict, Ok(()) | Err(VerifyError::Deadlock { .. })), "{verdict:?}");
            }
            let again = goal::export(&import.programs, GoalCosts::default()).expect("indices count from 0");
            match goal::import(&again) {
                Ok(again) => assert_eq!(again.programs.len(), import.programs.len()),
                // A message of no bytes has one byte when written, which may be one too many.
                Err(error) => assert!(matches!(error.reason, GoalReason::TooLarge { .. }), "{error}"),
            }
        }
        Err(error) => inside(&written, error.at.line),
    }
}

/// A text that may be a cost profile.
pub fn profile(bytes: &[u8]) {
    let written = String::from_utf8_lossy(bytes);
    match Profile::read("profile.toml", &written) {
        Ok(profile) => {
            let is_cost = |value: f64| value.is_finite() && value >= 0.0;
            let sound = profile.numbers.iter().all(|number| is_cost(number.value) && !number.source.is_empty());
            assert!(sound, "{profile:?}");
        }
        Err(error) => inside(&written, error.line),
    }
}

fn inside(text: &str, line: usize) {
    assert!((1..=text.matches('\n').count() + 1).contains(&line), "line {line}");
}
