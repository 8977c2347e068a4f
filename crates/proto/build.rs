//! Compiles `proto/` without any program outside cargo: protox parses, prost and tonic generate.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message as _;

/// The files that no other file imports; protox finds the rest by their imports.
const ROOTS: [&str; 4] = [
    "tikv/tikvpb.proto",
    "tikv/meta_storagepb.proto",
    "tikv/keyspacepb.proto",
    "flotilla/peers.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());

    let descriptors = protox::compile(ROOTS, [&proto])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
