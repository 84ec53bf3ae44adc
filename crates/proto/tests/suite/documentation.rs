//! docs/wire.md describes the messages that this code sends.

use outboard_proto::wire::VERSION;

#[test]
fn wire_document_names_this_version() {
    let text = include_str!("../../../../docs/wire.md");
    assert!(
        text.contains(&format!("\nVersion {VERSION}. ")),
        "docs/wire.md begins with another version than {VERSION}"
    );
    let fields: Vec<&str> = text.lines().filter(|line| line.contains("| version |")).collect();
    let stated = format!("| version | {VERSION} |");
    assert!(!fields.is_empty() && fields.iter().all(|line| line.contains(&stated)), "not all {VERSION}: {fields:?}");
}
