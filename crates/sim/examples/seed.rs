//! Plays seeds of the mixed faults and prints the account of the first that fails: `seed FROM [TO]`.

use outboard_sim::{mixed, mixed_reductions, run};

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().expect("a number")).collect();
    match args[..] {
        [seed] => match run(&mixed_reductions(seed), seed) {
            Ok(outcome) => println!("{outcome:#?}"),
            Err(failure) => println!("{failure}"),
        },
        [from, to] => {
            let summary = mixed(from..to, 2, |_| {});
            for failure in &summary.failures {
                println!("seed {}: {}", failure.seed, failure.breach);
            }
            println!("{} of {} failed: {:?}", summary.failed_seeds.len(), summary.runs, summary.failed_seeds);
            println!("{:?} {} {}", summary.in_collectives, summary.calls, summary.errors);
        }
        _ => println!("seed FROM [TO]"),
    }
}
