//! Declarations of C libraries that are loaded at run time and never linked, so that the daemon starts without them.
//!
//! Invariant: layouts and values equal the installed headers'. A test of each library proves it with the C compiler.

/// Declares structures: `whole` C types, or their first fields (`part`). A field with another name in C gives that
/// Declares structures: `whole` C types, or their first fields (`part`). A field may give its different name in C.
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

/// Declares a structure of the functions of a library and of its dependencies, named as in the headers.
macro_rules! functions {
    ($library:ident of $file:literal: $(fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        pub(super) struct $library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $library {
            /// Loads the library for the life of the process: its threads and exit handlers outlive any owner.
            pub(super) fn load_for_ever() -> Result<Self, libloading::Error> {
                // SAFETY: the constructors read the environment and set up tables, without other preconditions; the
                // types match the headers.
                unsafe {
                    let library = std::mem::ManuallyDrop::new(libloading::Library::new($file)?);
                    Ok(Self { $($name: *library.get(stringify!($name).as_bytes())?,)* })
                }
            }
        }
    };
}
pub(crate) use functions;

/// A C expression and the value that it must have.
#[cfg(test)]
pub(crate) type Fact = (String, i128);

/// Fails when the headers contradict `facts`. If they are missing, prints that `package` has them and passes.
#[cfg(test)]
pub(crate) fn check(headers: &[&str], package: &str, facts: &[Fact]) {
    let first = format!("/usr/include/{}", headers[0]);
    if !std::path::Path::new(&first).exists() {
        eprintln!("skipped: {first} is missing (apt install {package})");
        return;
    }
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
