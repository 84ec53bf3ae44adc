//! Functions of C libraries that are loaded at run time and never linked, so that programs start without them.

/// Declares a structure of the functions of a library and of its dependencies, named as in the headers. The first file
/// that exists is loaded. The calling crate depends on libloading.
#[macro_export]
macro_rules! functions {
    (
        $(#[$attribute:meta])*
        $library:ident of $file:literal $(or $other:literal)*:
        $(fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*
    ) => {
        $(#[$attribute])*
        pub(super) struct $library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $library {
            /// Loads the library for the life of the process: its threads and exit handlers outlive any owner.
            pub(super) fn load_for_ever() -> Result<Self, libloading::Error> {
                // SAFETY: the constructors read the environment and set up tables, without other preconditions; the
                // types match the headers.
                unsafe {
                    let library = libloading::Library::new($file)$(.or_else(|_| libloading::Library::new($other)))*?;
                    let library = std::mem::ManuallyDrop::new(library);
                    Ok(Self { $($name: *library.get(stringify!($name).as_bytes())?,)* })
                }
            }
        }
    };
}
