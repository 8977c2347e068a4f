//! Where replicas and leaders are and should be: heartbeats and time in, operators out, without IO.
