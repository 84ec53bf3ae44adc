//! Writes the seed corpus of one target: `seeds TARGET DIRECTORY`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, directory] = &arguments[..] else {
        eprintln!("usage: seeds TARGET DIRECTORY");
        return ExitCode::FAILURE;
    };
    let Some(target) = outboard_fuzz::TARGETS.iter().find(|one| one.name == target) else {
        eprintln!("no target is called {target}");
        return ExitCode::FAILURE;
    };
    let write = || {
        std::fs::create_dir_all(directory)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
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
