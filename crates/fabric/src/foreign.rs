//! Declarations of C libraries that are loaded at run time and never linked, so that the daemon starts without them.
//!
//! Invariant: layouts and values equal the installed headers. A test of each library checks this with the C compiler.

/// Declares structures: `whole` C types, or their first fields (`part`). A field with another name in C states that
/// name.
macro_rules! structures {
    ($($extent:ident $name:ident = $theirs:literal {
        $($field:ident $(= $path:literal)?: $kind:ty),* $(,)?
    })*) => {
        $(
            #[repr(C)]
            pub(super) struct $name {
                $(pub(super) $field: $kind,)*
            }
        )*

        #[cfg(test)]
        fn structures() -> Vec<$crate::foreign::Fact> {
            let mut facts = Vec::new();
            $(
                if stringify!($extent) == "whole" {
                    facts.push((format!("sizeof({})", $theirs), size_of::<$name>() as i128));
                }
                $(
                    let path = [$($path,)? stringify!($field)][0];
                    let offset = std::mem::offset_of!($name, $field) as i128;
                    facts.push((format!("offsetof({}, {path})", $theirs), offset));
                )*
            )*
            facts
        }
    };
}
pub(crate) use structures;

macro_rules! constants {
    ($($name:ident: $kind:ty = $value:expr;)*) => {
        $(pub(super) const $name: $kind = $value;)*

        #[cfg(test)]
        fn constants() -> Vec<$crate::foreign::Fact> {
            vec![$((stringify!($name).to_owned(), $name as i128)),*]
        }
    };
}
pub(crate) use constants;

/// A C expression and the value that the expression must have.
#[cfg(test)]
pub(crate) type Fact = (String, i128);

/// Fails when the installed headers contradict `facts`.
#[cfg(test)]
pub(crate) fn check(headers: &[&str], facts: &[Fact]) {
    let mut source = String::from("#include <stddef.h>\n");
    headers.iter().for_each(|header| source += &format!("#include <{header}>\n"));
    for (expression, value) in facts {
        source += &format!("_Static_assert(({expression}) == ({value}), \"{expression} is not {value}\");\n");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("layout.c");
    std::fs::write(&file, source).expect("a writable temporary folder");
    let compiled = std::process::Command::new("cc").arg("-fsyntax-only").arg(&file).output();
    let compiled = compiled.expect("a C compiler (cc)");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
