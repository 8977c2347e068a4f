//! The protocols that clients speak, each in a folder of its own.

pub mod rawkv;
