//! Sets `cfg(shuttle)` for the crate that is built, and for none of its dependencies.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(shuttle)");
    println!("cargo::rustc-cfg=shuttle");
}
