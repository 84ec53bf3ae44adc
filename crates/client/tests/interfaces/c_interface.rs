//! Checks `outboard.h` against the library: the same codes and functions, and a C program that uses them all.

use crate::service::{Behaviour, FakeService};
use outboard::Reduction;
use outboard::bootstrap::tcp_server;
use outboard_shm::status::Status;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

fn header() -> String {
    std::fs::read_to_string(include_folder().join("outboard.h")).unwrap()
}

fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

#[test]
fn the_header_opens_with_the_smallest_example() {
    let example = std::fs::read_to_string(include_folder().join("../../../examples/allgather.c")).unwrap();
    let (_, program) = example.split_once(" */\n").expect("a comment on how to run it");
    let commented: String = program.lines().map(|line| format!("// {line}").trim_end().to_owned() + "\n").collect();
    let header = header();
    let (_, after) = header.split_once(" */\n").expect("a comment on the library");
    assert!(after.starts_with(&commented), "outboard.h needs these lines behind its first comment:\n{commented}");
}

/// The folder of the `liboutboard.so` that cargo built for this test.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    assert!(folder.join("liboutboard.so").exists(), "no liboutboard.so in {}", folder.display());
    folder.to_owned()
}

/// The number that the header defines for `name`.
fn constant(header: &str, name: &str) -> i64 {
    let defines = header.lines().filter_map(|line| line.strip_prefix("#define "));
    let value = defines.filter_map(|define| define.strip_prefix(name)?.strip_prefix(' ')).next();
    let value = value.unwrap_or_else(|| panic!("{name} is not in outboard.h"));
    value.split_whitespace().next().unwrap().trim_matches(['(', ')']).parse().unwrap()
}

/// A name as the header writes it: `RankLost` is `RANK_LOST`.
fn shouted(name: &str) -> String {
    let mut shouted = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !shouted.is_empty() {
            shouted.push('_');
        }
        shouted.extend(letter.to_uppercase());
    }
    shouted
}

#[test]
fn status_codes_and_sizes_match_the_header() {
    let header = header();
    for status in Status::ALL {
        let name = match status {
            Status::Ok => "OUTBOARD_OK".to_owned(),
            error => format!("OUTBOARD_ERR_{}", shouted(&format!("{error:?}"))),
        };
        assert_eq!(constant(&header, &name), i64::from(status.code()), "{name}");
    }
    assert_eq!(header.matches("#define OUTBOARD_ERR_").count() + 1, Status::ALL.len());
    assert_eq!(constant(&header, "OUTBOARD_ABI_VERSION"), i64::from(outboard::ABI_VERSION));
    assert_eq!(constant(&header, "OUTBOARD_OFFER_BYTES"), outboard::OFFER_BYTES as i64);
}

/// The number of an enumerator of the header.
fn enumerator(header: &str, name: &str) -> Option<u16> {
    let line = header.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(" = "))?;
    line.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn operator_and_element_codes_match_the_header() {
    let header = header();
    let mut named = BTreeSet::new();
    for reduction in Reduction::all() {
        // In the header a digit follows its letter: `ComplexF32` is `COMPLEX_F32`.
        let code = reduction.code();
        let operator = format!("OUTBOARD_{}", shouted(&format!("{:?}", reduction.operator())));
        let element = format!("OUTBOARD_{}", shouted(&format!("{:?}", reduction.element())));
        assert_eq!(enumerator(&header, &operator), Some(code >> 8), "{operator}");
        assert_eq!(enumerator(&header, &element), Some(code & 0xff), "{element}");
        named.extend([operator, element]);
    }
    assert_eq!(named.len(), 12 + 19);
}

fn compile(folder: &Path, source: &Path) -> PathBuf {
    let program = folder.join(source.file_stem().unwrap());
    let library = library_folder();
    let status = Command::new("cc")
        .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include_folder())
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-loutboard")
        .status()
        .expect("a C compiler as `cc`; install gcc");
    assert!(status.success(), "{} does not compile", source.display());
    program
}

/// Names of library functions that `text` mentions with an argument list.
fn functions(text: &str) -> BTreeSet<String> {
    let mentions = text.match_indices("outboard_").filter_map(|(at, _)| text[at..].split_once('('));
    let name = |text: &str| text.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    mentions.map(|(mention, _)| mention.to_owned()).filter(|mention| name(mention)).collect()
}

/// The header declares every function of the library, and the library has every declared function.
#[test]
fn header_declares_exactly_the_exported_functions() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let parts = std::fs::read_dir(sources.join("c_interface")).unwrap().map(|part| part.unwrap().path());
    let files = parts.chain([sources.join("c_interface.rs")]);
    let source: String = files.map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let exported = source.split("extern \"C\" fn ").skip(1).filter_map(|rest| rest.split_once(['(', ' ']));
    let exported: BTreeSet<String> = exported.map(|(name, _)| name.to_owned()).collect();
    assert!(exported.contains("outboard_iallgather"));
    assert_eq!(functions(&header()), exported);

    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.c");
    let uses: String = exported.iter().map(|name| format!("    (void (*)(void)){name},\n")).collect();
    let program = format!(
        "#include \"outboard.h\"\nstatic void (*const table[])(void) = {{\n{uses}}};\n\
         int main(void) {{ return table[0] == 0; }}\n"
    );
    std::fs::write(&table, program).unwrap();
    compile(folder.path(), &table);
}

/// Programs that are killed when the test ends, however it ends.
struct Programs(Vec<Child>);

impl Drop for Programs {
    fn drop(&mut self) {
        for program in &mut self.0 {
            // The program has already ended unless the test failed.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// Two C programs find each other by the rendezvous, call everything, fork, and fail as expected.
#[test]
fn c_programs_call_every_function() {
    run_two("collectives.c");
}

/// TH-2: operators of a C program.
#[test]
fn c_programs_reduce_by_their_own_operators() {
    run_two("operators.c");
}

/// Runs two ranks of a C program to their end.
fn run_two(source: &str) {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interfaces/c").join(source);
    let program = compile(folder.path(), &source);
    let service = FakeService::start(Behaviour::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let start = |rank: u32| {
        Command::new(&program)
            // Cargo's own value names folders that may hold a library of an earlier build.
            .env("LD_LIBRARY_PATH", library_folder())
            .env("OUTBOARD_SOCKET", service.socket())
            .env("OUTBOARD_RENDEZVOUS", listener.local_addr().unwrap().to_string())
            .env(tcp_server::TOKEN_VARIABLE, "secret")
            .env("OUTBOARD_RANK", rank.to_string())
            .env("OUTBOARD_WORLD_SIZE", "2")
            .spawn()
            .unwrap()
    };
    let mut programs = Programs((0..2).map(start).collect());
    let token = tcp_server::JobToken::new(b"secret", "");
    tcp_server::serve(&listener, 2, &token, Instant::now() + tcp_server::LIMIT).unwrap();
    for program in &mut programs.0 {
        assert!(program.wait().unwrap().success());
    }
}
