//! Comments are sentences with a subject. The openings and words below, which hide the subject, are in no comment.
//!
//! The rule judges files by their lines, so the test has no list of exceptions.

use std::fs;
use std::path::{Path, PathBuf};

use crate::requirements::{FOLDERS, files};

/// Words that open a fragment.
const OPENINGS: [&str; 6] = ["Of ", "The same ", "What ", "Which ", "Who ", "Where "];
/// Words that hide who does what.
const HOLDING: [&str; 5] = ["told", "hears", "whoever", "Whoever", "those of"];

/// The texts of the comment lines of a Rust or C file.
fn comments(text: &str) -> Vec<&str> {
    let (mut found, mut within) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        let begins = line.starts_with("/*");
        if within || begins || line.starts_with("//") {
            found.push(line.trim_start_matches(['/', '*', '!', ' ']));
        }
        within = (within || begins) && !line.contains("*/");
    }
    found
}

fn is_read_twice(comment: &str) -> bool {
    let whole = |at: usize, word: &str| {
        let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !letter(comment[..at].chars().next_back()) && !letter(comment[at + word.len()..].chars().next())
    };
    OPENINGS.iter().any(|opening| comment.starts_with(opening))
        || HOLDING.iter().any(|word| comment.match_indices(word).any(|(at, _)| whole(at, word)))
}

#[test]
fn no_comment_opens_with_a_fragment_or_hides_who_does_what() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    FOLDERS.iter().for_each(|folder| files(&root.join(folder), &mut paths));
    let is_code =
        |path: &&PathBuf| path.extension().is_some_and(|end| ["rs", "c", "h"].iter().any(|code| end == *code));
    let mut found = Vec::new();
    for path in paths.iter().filter(is_code) {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = comments(&text).into_iter().filter(|line| is_read_twice(line));
        found.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(found.is_empty(), "reword lines that open with {OPENINGS:?} or hold {HOLDING:?}: {found:#?}");
}

#[test]
fn fragments_and_riddles_are_found_in_comments_alone() {
    let text = "/// Of three.\nlet told = 1; // told\n//! A crate, untold.\n/* first\n * Whoever reads\n last */\n\
                let whose = 2;\n";
    let lines = comments(text);
    assert_eq!(lines, ["Of three.", "A crate, untold.", "first", "Whoever reads", "last */"]);
    assert_eq!(lines.iter().filter(|line| is_read_twice(line)).count(), 2);
}
