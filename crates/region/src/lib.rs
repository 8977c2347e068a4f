//! One replica of a key range and a shard of many, without IO.
