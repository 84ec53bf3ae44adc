//! README.md, docs/grid.md and docs/promise.md show the figures of the last `make bench`, docs/figures.json,
//! docs/grid.json and docs/promise.json, row by row.

use outboard_bench::{Table, read_tables, write_tables};
use std::fs;

fn file(path: &str) -> String {
    fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).expect(path)
}

#[test]
fn documents_have_the_last_figures() {
    shows("README.md", "docs/figures.json");
    shows("docs/grid.md", "docs/grid.json");
    shows("docs/processor-time.md", "docs/processor-time.json");
    shows("docs/promise.md", "docs/promise.json");
}

fn shows(text: &str, figures: &str) {
    let readme = file(text);
    let shown = read_tables(&readme).expect("tables");
    let last: Vec<Table> = serde_json::from_str(&file(figures)).expect("tables");
    let columns =
        |tables: &[Table]| tables.iter().map(|table| (table.name.clone(), table.columns.clone())).collect::<Vec<_>>();
    assert_eq!(columns(&shown), columns(&last), "{text}");
    for (shown, last) in shown.iter().zip(&last) {
        for row in &shown.rows {
            let same_name = last.rows.iter().filter(|last| last.name == row.name).collect::<Vec<_>>();
            assert_eq!(same_name, [row], "{}: {figures} has it, once", row.name);
        }
        assert_eq!(shown.rows.len(), last.rows.len(), "{}: rows that {text} has not", last.name);
    }
    assert_eq!(write_tables(&readme, &last).expect("tables"), readme, "{text} as the program writes it");
}
