//! A small client of Flotilla's RawKV: routing, retries, batch stream.
