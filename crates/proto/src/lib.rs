//! Generated messages and gRPC services: TiKV's RawKV and PD, and Flotilla's own.
//!
//! The sources are the `.proto` files in `proto/` at the root of the repository; `build.rs`
//! compiles them. Packages become modules of the same name. `bytes` fields are
//! [`bytes::Bytes`], so a message that came over the wire shares the buffer that it came in, and
//! maps are ordered, so equal messages have equal encodings.
//!
//! The part of TiKV's protocol that is here is what Flotilla serves, and as much of the requests of
//! transactions as their refusal needs. `tests/wire.rs` compares each field with the numbers that
//! TiKV's clients use.

/// Regions, replicas and stores.
#[allow(missing_docs, clippy::all)]
pub mod metapb {
    tonic::include_proto!("metapb");
}

/// Why a region did not serve a request.
#[allow(missing_docs, clippy::all)]
pub mod errorpb {
    tonic::include_proto!("errorpb");
}

/// The coprocessor, as far as its refusal needs it.
#[allow(missing_docs, clippy::all)]
pub mod coprocessor {
    tonic::include_proto!("coprocessor");
}

/// Requests and responses of RawKV, and the errors of transactions.
#[allow(missing_docs, clippy::all)]
pub mod kvrpcpb {
    tonic::include_proto!("kvrpcpb");
}

/// The service of a store, and its batch stream.
#[allow(missing_docs, clippy::all, clippy::too_many_lines)]
pub mod tikvpb {
    tonic::include_proto!("tikvpb");
}

/// The service of a placement driver.
#[allow(missing_docs, clippy::all, clippy::too_many_lines)]
pub mod pdpb {
    tonic::include_proto!("pdpb");
}

/// Facts that placement services publish.
#[allow(missing_docs, clippy::all)]
pub mod meta_storagepb {
    tonic::include_proto!("meta_storagepb");
}

/// Named parts of the key space.
#[allow(missing_docs, clippy::all, clippy::too_many_lines)]
pub mod keyspacepb {
    tonic::include_proto!("keyspacepb");
}

/// Flotilla's own packages; generated code refers to its neighbours through this path.
mod flotilla {
    /// Messages between stores, and the status of a store.
    #[allow(missing_docs, clippy::all, clippy::too_many_lines)]
    pub mod peers {
        tonic::include_proto!("flotilla.peers");
    }
}

pub use flotilla::peers;

/// All of the above as an encoded `FileDescriptorSet`, for gRPC's server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
