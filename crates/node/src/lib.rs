//! The Flotilla process: threads, gRPC, configuration, and the command line.
