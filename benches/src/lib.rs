//! Criterion benches, one file a question.
