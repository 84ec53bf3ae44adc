//! Gives the C library its name for the dynamic loader.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutboard.so");
    println!("cargo:rerun-if-changed=build.rs");
}
