//! A whole cluster in one thread, from one seed.

pub mod checker;
