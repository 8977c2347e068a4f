//! What the faulty disk keeps, loses and refuses.
