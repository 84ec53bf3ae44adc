//! Sets the soname of the C library, and gives the built library that name, too.

use std::io;
use std::path::{Path, PathBuf};

/// Programs load the library by this name. The number changes with an incompatible outboard.h.
const SONAME: &str = "liboutboard.so.1";

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // OUT_DIR is target/PROFILE/build/PACKAGE/out. Cargo leaves liboutboard.so in target/PROFILE, and in its `deps`.
    let profile = out.ancestors().nth(3).expect("OUT_DIR lies in the folder of the profile");
    for folder in [profile.to_owned(), profile.join("deps")] {
        if let Err(error) = link(&folder) {
            println!("cargo:warning={SONAME} is not linked in {}: {error}; link it by hand", folder.display());
        }
    }
}

/// Makes the link, by which programs that were linked in the build tree find the library there.
fn link(folder: &Path) -> io::Result<()> {
    match std::os::unix::fs::symlink("liboutboard.so", folder.join(SONAME)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
