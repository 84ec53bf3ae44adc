//! Sets the soname of the C library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutboard.so");
    println!("cargo:rerun-if-changed=build.rs");
}
