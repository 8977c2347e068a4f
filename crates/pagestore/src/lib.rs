//! Copy-on-write B+tree pages with a segregated freelist and concurrent reads.
