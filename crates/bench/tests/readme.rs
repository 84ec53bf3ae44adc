//! The tables of docs/performance and docs/promise.md show the figures of the last `make bench`, row by row: those of
//! docs/figures.json, docs/promise.json and the JSON files of docs/performance.

use outboard_bench::{Table, read_tables, write_tables};
use std::fs;

fn file(path: &str) -> String {
    fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).expect(path)
}

#[test]
fn the_collectives_have_the_last_figures() {
    shows("docs/performance/collectives.md", "docs/figures.json");
}

#[test]
fn the_grid_has_the_last_figures() {
    shows("docs/performance/grid.md", "docs/performance/grid.json");
}

#[test]
fn processor_time_has_the_last_figures() {
    shows("docs/performance/processor-time.md", "docs/performance/processor-time.json");
}

#[test]
fn the_promise_has_the_last_figures() {
    shows("docs/promise.md", "docs/promise.json");
}

fn shows(text: &str, figures: &str) {
    let page = file(text);
    let shown = read_tables(&page).expect("tables");
    let last: Vec<Table> = serde_json::from_str(&file(figures)).expect("tables");
    let columns =
        |tables: &[Table]| tables.iter().map(|table| (table.name.clone(), table.columns.clone())).collect::<Vec<_>>();
    assert_eq!(columns(&shown), columns(&last));
    for (shown, last) in shown.iter().zip(&last) {
        for row in &shown.rows {
            let same_name = last.rows.iter().filter(|last| last.name == row.name).collect::<Vec<_>>();
            assert_eq!(same_name, [row], "{}: {figures} has it, once", row.name);
        }
        assert_eq!(shown.rows.len(), last.rows.len(), "{}: rows that {text} has not", last.name);
    }
    assert_eq!(write_tables(&page, &last).expect("tables"), page, "as the program writes them");
}
