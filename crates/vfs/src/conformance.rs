//! One suite of checks that every file system of this crate must pass.
