//! Writes the seed corpus of one target: `seeds TARGET DIRECTORY`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, directory] = &arguments[..] else {
        eprintln!("usage: seeds TARGET DIRECTORY");
        return ExitCode::FAILURE;
    };
    let seeds = match target.as_str() {
        "hostile_connection" => outboard_fabric::hostile::scripts(),
        "hostile_datagrams" => outboard_fuzz::seeds::datagrams(),
        "hostile_rank" => outboard_fuzz::seeds::rank(),
        "plan_text" => outboard_fuzz::seeds::plans(),
        "recording_sequences" => outboard_fuzz::seeds::sequences(),
        "nic_packets" => outboard_fuzz::seeds::packets(),
        "nic_descriptors" => outboard_fuzz::descriptors::seeds(),
        "profile_text" => outboard_fuzz::seeds::profiles(),
        "goal_import" => outboard_fuzz::seeds::schedules(),
        other => {
            eprintln!("no target is called {other}");
            return ExitCode::FAILURE;
        }
    };
    let write = || {
        std::fs::create_dir_all(directory)?;
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(Path::new(directory).join(format!("seed-{number}")), seed)?;
        }
        std::io::Result::Ok(())
    };
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write seeds to {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}
