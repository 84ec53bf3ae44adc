//! The tables of docs/performance and docs/promise.md show the figures of the last `make bench`, row by row. The
//! figures are in docs/figures.json, docs/promise.json and the JSON files of docs/performance.

use outboard_bench::{FigureTable, chart, excerpt, read_tables, write_tables};
use std::fs;

fn file(path: &str) -> String {
    fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).expect(path)
}

#[test]
fn documents_have_the_last_figures() {
    shows("docs/performance/collectives.md", "docs/figures.json");
    shows("docs/performance/grid.md", "docs/performance/grid.json");
    shows("docs/performance/processor-time.md", "docs/performance/processor-time.json");
    shows("docs/promise.md", "docs/promise.json");
}

#[test]
fn the_readme_and_its_chart_show_rows_of_the_last_figures() {
    let readme = file("README.md");
    let mut shown = read_tables(&readme).expect("tables");
    excerpt(&mut shown, &tables("docs/figures.json")).expect("rows of the figures");
    assert_eq!(write_tables(&readme, &shown).expect("tables"), readme, "outboard bench readme writes them");
    assert_eq!(chart(&shown[0]), file("docs/figures.svg"));
}

fn tables(figures: &str) -> Vec<FigureTable> {
    serde_json::from_str(&file(figures)).expect("tables")
}

fn shows(text: &str, figures: &str) {
    let page = file(text);
    let shown = read_tables(&page).expect("tables");
    let last = tables(figures);
    let columns = |tables: &[FigureTable]| {
        tables.iter().map(|table| (table.name.clone(), table.columns.clone())).collect::<Vec<_>>()
    };
    assert_eq!(columns(&shown), columns(&last), "{text}");
    for (shown, last) in shown.iter().zip(&last) {
        for row in &shown.rows {
            let same_name = last.rows.iter().filter(|last| last.name == row.name).collect::<Vec<_>>();
            assert_eq!(same_name, [row], "{}: {figures} has it, once", row.name);
        }
        assert_eq!(shown.rows.len(), last.rows.len(), "{}: rows that {text} has not", last.name);
    }
    assert_eq!(write_tables(&page, &last).expect("tables"), page, "{text} as the program writes it");
}
