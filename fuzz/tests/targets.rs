//! Every fuzz target over the committed inputs (`seeds`), the seeds that code makes, and inputs of a fixed seed.

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::LazyLock;

use outboard_fuzz::TARGETS;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The seed of all inputs that this file makes.
const SEED: u64 = 51;
/// Bytes of the longest input of random bytes.
const LONGEST: usize = 700;
/// An input longer than this grows no further.
const GROWN: usize = 8192;

type Inputs = Vec<Vec<u8>>;

/// The committed inputs of each target. `hostile_rank` counts the descriptors of this process, so no test opens a file
/// once a target plays.
static COMMITTED: LazyLock<BTreeMap<String, Inputs>> = LazyLock::new(|| {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = list(&here.join("seeds")).into_iter().map(|folder| {
        let inputs = list(&folder).iter().map(|path| std::fs::read(path).expect("a readable input")).collect();
        (stem(&folder), inputs)
    });
    let committed: BTreeMap<String, Inputs> = folders.collect();
    let programs: Vec<String> = list(&here.join("libfuzzer/fuzz_targets")).iter().map(|path| stem(path)).collect();
    assert!(committed.keys().eq(&programs), "a folder for each of {programs:?}: {:?}", committed.keys());
    assert!(TARGETS.iter().map(|one| one.name).eq(&programs), "a target for each of {programs:?}");
    committed
});

/// The paths in a folder, in order.
fn list(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    paths
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a name").to_string_lossy().into_owned()
}

/// Plays the committed inputs of a target, its seeds, and `count` inputs that are random or made from both.
fn fuzz(name: &str, count: usize) {
    let target = TARGETS.iter().find(|one| one.name == name).expect("a target");
    let mut seeds = COMMITTED[name].clone();
    assert!(!seeds.is_empty(), "fuzz/seeds/{name} has no inputs");
    seeds.extend((target.seeds)());
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let made = (0..count).map(|_| make(&seeds, &mut rng));
    for input in seeds.iter().cloned().chain(made) {
        if catch_unwind(AssertUnwindSafe(|| (target.play)(&input))).is_err() {
            let mut file = tempfile::NamedTempFile::with_prefix(format!("{name}-")).expect("a file");
            file.write_all(&input).expect("room for the input");
            let (_, path) = file.keep().expect("the file stays");
            panic!(
                "{name} panics over an input of {} bytes. To replay it, and to keep it as a test:\n  \
                 cp {} {}/seeds/{name}/ && cargo test -p outboard-fuzz --test targets {name}",
                input.len(),
                path.display(),
                env!("CARGO_MANIFEST_DIR"),
            );
        }
    }
}

/// One in eight inputs is random bytes; the others are seeds with a few changes.
fn make(seeds: &[Vec<u8>], rng: &mut ChaCha8Rng) -> Vec<u8> {
    if rng.random_ratio(1, 8) {
        let mut input = vec![0; rng.random_range(0..LONGEST)];
        rng.fill_bytes(&mut input);
        return input;
    }
    let mut input = seeds.choose(rng).expect("seeds").clone();
    for _ in 0..1 << rng.random_range(0..4) {
        change(&mut input, seeds, rng);
    }
    input
}

/// Flips a bit, sets a byte, truncates, splices, duplicates some bytes, takes some from a seed, or removes some.
fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut ChaCha8Rng) {
    let at = rng.random_range(0..=input.len());
    let range = at..input.len().min(at + rng.random_range(1..32));
    let seed = seeds.choose(rng).expect("seeds");
    let tail = &seed[rng.random_range(0..=seed.len())..];
    let piece = &tail[..tail.len().min(rng.random_range(1..32))];
    match rng.random_range(0..16) {
        0..4 => input[range].iter_mut().take(1).for_each(|byte| *byte ^= 1 << rng.random_range(0..8)),
        4..7 => input[range].iter_mut().take(1).for_each(|byte| *byte = rng.random()),
        7 => input.truncate(at),
        8 => {
            input.truncate(at);
            input.extend(tail);
        }
        9 | 10 if input.len() < GROWN => {
            let again = input[range].to_vec();
            input.splice(at..at, again);
        }
        11 | 12 if input.len() < GROWN => drop(input.splice(at..at, piece.iter().copied())),
        13 => drop(input.splice(range, piece.iter().copied())),
        _ => drop(input.drain(range)),
    }
}

#[test]
fn goal_import_rejects_with_a_line_or_imports_exportable_schedules() {
    fuzz("goal_import", 100_000);
}

#[test]
fn hostile_connection_accepts_only_frames_of_the_peer() {
    fuzz("hostile_connection", 4_000);
}

#[test]
fn hostile_datagrams_harm_no_honest_rank() {
    fuzz("hostile_datagrams", 4_000);
}

#[test]
fn hostile_rank_harms_no_honest_rank_and_leaves_no_descriptor() {
    fuzz("hostile_rank", 300);
}

#[test]
fn plan_text_is_refused_with_a_line_or_read_and_written_again() {
    fuzz("plan_text", 100_000);
}

#[test]
fn profile_text_is_refused_with_a_line_or_has_sound_costs() {
    fuzz("profile_text", 100_000);
}

#[test]
fn recording_sequences_agree_with_their_reference() {
    fuzz("recording_sequences", 3_000);
}
