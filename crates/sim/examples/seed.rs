//! Plays seeds of the mixed faults, or of recorded groups and messages, and prints the account of the first that
//! fails: `seed [messages] FROM [TO]`.

use outboard_sim::{Scenario, mixed_hardships, mixed_messages, run, sweep};

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let messages = args.first().is_some_and(|first| first == "messages");
    let scenario: fn(u64) -> Scenario = if messages { mixed_messages } else { mixed_hardships };
    args.drain(..usize::from(messages));
    let args: Vec<u64> = args.iter().map(|a| a.parse().expect("a number")).collect();
    match args[..] {
        [seed] => match run(&scenario(seed), seed) {
            Ok(outcome) => println!("{outcome:#?}"),
            Err(failure) => println!("{failure}"),
        },
        [from, to] => {
            let summary = sweep(from..to, 2, scenario, |_| {});
            for failure in &summary.failures {
                println!("seed {}: {}", failure.seed, failure.breach);
            }
            println!("{} of {} failed: {:?}", summary.failed_seeds.len(), summary.runs, summary.failed_seeds);
            println!("{:?} {} {}", summary.in_collectives, summary.calls, summary.errors);
        }
        _ => println!("seed [messages] FROM [TO]"),
    }
}
