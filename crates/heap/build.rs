//! Makes this library the first to be initialized, so that its fork handlers enclose the handlers of all others.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutboard_heap.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
