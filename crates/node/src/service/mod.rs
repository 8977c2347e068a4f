//! The protocols that clients speak, each in a folder of its own, and the operator service.

pub(crate) mod operator;
pub mod rawkv;
