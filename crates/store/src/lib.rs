//! Carries out what regions decide, on one machine's disk.
