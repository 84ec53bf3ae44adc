//! docs/requirements.md has a line for each requirement ID that code or tests cite, and no other line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose files cite IDs.
pub(crate) const FOLDERS: [&str; 6] = ["crates", "models", "tools", "bindings", "fuzz", "examples"];
/// Folders of built files.
const BUILT: [&str; 2] = ["target", "build"];
/// Endings of files with code or settings.
const CODE: [&str; 8] = ["rs", "c", "h", "f90", "py", "sh", "toml", "map"];

/// A requirement ID: the code of its paper, and its number there.
type Id = (String, u32);

/// `word` as an ID of one of `papers`: in a comment (`AB-1`), or at the start of a function's name (`ab_1_...`).
fn id(word: &str, papers: &BTreeSet<String>) -> Option<Id> {
    let (paper, number) = match word.split_once('-') {
        Some((paper, number)) => (paper.to_owned(), number),
        None => {
            let (paper, rest) = word.split_once('_')?;
            let lower = paper.chars().all(|letter| letter.is_ascii_lowercase());
            (lower.then(|| paper.to_ascii_uppercase())?, rest.split_once('_')?.0)
        }
    };
    let number = if number.chars().all(|digit| digit.is_ascii_digit()) { number.parse().ok()? } else { return None };
    papers.contains(&paper).then_some((paper, number))
}

/// The IDs that `text` cites. A range (`AB-1 to AB-3`) cites each ID in it.
fn cited(text: &str, papers: &BTreeSet<String>) -> BTreeSet<Id> {
    let part_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let words: Vec<&str> = text.split(|letter| !part_of_word(letter)).filter(|word| !word.is_empty()).collect();
    let mut found = BTreeSet::new();
    for (at, word) in words.iter().enumerate() {
        let Some((paper, number)) = id(word, papers) else { continue };
        let first = match words.get(at.wrapping_sub(2)).and_then(|word| id(word, papers)) {
            Some((same, first)) if words[at - 1] == "to" && same == paper => first.min(number),
            _ => number,
        };
        found.extend((first..=number).map(|number| (paper.clone(), number)));
    }
    found
}

/// Every file of code below `folder`.
pub(crate) fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let entry = entry.expect("an entry of the folder");
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().expect("the entry's type");
        if kind.is_dir() {
            if !BUILT.iter().any(|built| name == *built) {
                files(&path, found);
            }
        } else if path.extension().is_some_and(|ending| CODE.iter().any(|code| ending == *code)) {
            found.push(path);
        }
    }
}

/// The IDs of the table of docs/requirements.md, in its order.
fn table(text: &str) -> Vec<Id> {
    let first_columns = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |")).map(|(id, _)| id);
    let ids = first_columns.filter_map(|id| {
        let (paper, number) = id.split_once('-')?;
        Some((paper.to_owned(), number.parse().ok()?))
    });
    ids.collect()
}

fn written(ids: &[Id]) -> String {
    ids.iter().map(|(paper, number)| format!("{paper}-{number}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn every_cited_id_has_a_line_and_every_line_is_cited() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = table(&fs::read_to_string(root.join("docs/requirements.md")).expect("docs/requirements.md"));
    let mut sorted = listed.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(written(&listed), written(&sorted), "the table is sorted, with one line an ID");
    let papers: BTreeSet<String> = listed.iter().map(|(paper, _)| paper.clone()).collect();

    let mut paths = Vec::new();
    for folder in FOLDERS {
        files(&root.join(folder), &mut paths);
    }
    let mut citing: BTreeMap<Id, PathBuf> = BTreeMap::new();
    for path in paths {
        let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for id in cited(&String::from_utf8_lossy(&text), &papers) {
            citing.entry(id).or_insert_with(|| path.clone());
        }
    }
    for (id, path) in &citing {
        let id_written = written(std::slice::from_ref(id));
        assert!(listed.contains(id), "{} cites {id_written}, which docs/requirements.md lacks", path.display());
    }
    let uncited: Vec<Id> = listed.into_iter().filter(|id| !citing.contains_key(id)).collect();
    assert!(uncited.is_empty(), "docs/requirements.md has lines that no code cites: {}", written(&uncited));
}

#[test]
fn citations_are_ids_ranges_and_names_of_tests_and_nothing_else() {
    let papers = BTreeSet::from(["XY".to_owned()]);
    let text = "(XY-2, XY-4 to XY-6; UTF-8, XY-R, XY-7a, A-XY-8) fn xy_9_holds() fn xyz_10_holds() xy_11";
    let found = cited(text, &papers);
    let numbers: Vec<u32> = found.into_iter().map(|(_, number)| number).collect();
    assert_eq!(numbers, [2, 4, 5, 6, 9]);
}
