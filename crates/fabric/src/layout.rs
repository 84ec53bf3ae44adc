//! For tests of hand-written declarations: compares structures and constants with an installed header, by the C
//! compiler.

use std::process::Command;

/// One C expression and the value it must have.
pub(crate) struct Fact(pub(crate) String, pub(crate) i128);

/// Facts of a structure: its size and where fields lie. Of one that is declared in part, behind `part`, the size is not
/// compared.
macro_rules! structure {
    ($facts:ident, part $ours:ident = $theirs:literal { $($field:ident = $path:literal),* $(,)? }) => {
        $($facts.push($crate::layout::Fact(
            format!("offsetof({}, {})", $theirs, $path),
            std::mem::offset_of!($ours, $field) as i128,
        ));)*
    };
    ($facts:ident, $ours:ident = $theirs:literal { $($field:ident = $path:literal),* $(,)? }) => {
        $facts.push($crate::layout::Fact(format!("sizeof({})", $theirs), std::mem::size_of::<$ours>() as i128));
        $crate::layout::structure!($facts, part $ours = $theirs { $($field = $path),* });
    };
}
pub(crate) use structure;

macro_rules! constants {
    ($facts:ident: $($name:ident),* $(,)?) => {
        $($facts.push($crate::layout::Fact(stringify!($name).to_owned(), $name as i128));)*
    };
}
pub(crate) use constants;

/// Fails where the headers, of which `package` has the first, say otherwise; passes with a word where they are missing.
pub(crate) fn check(headers: &[&str], package: &str, facts: &[Fact]) {
    let first = format!("/usr/include/{}", headers[0]);
    if !std::path::Path::new(&first).exists() {
        eprintln!("skipped: {first} is missing (apt install {package})");
        return;
    }
    let mut source = String::from("#include <stddef.h>\n");
    headers.iter().for_each(|header| source += &format!("#include <{header}>\n"));
    for Fact(expression, value) in facts {
        source += &format!("_Static_assert(({expression}) == ({value}), \"{expression} is not {value}\");\n");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("layout.c");
    std::fs::write(&file, source).expect("a writable temporary folder");
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&file).output().expect("a C compiler (cc)");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
