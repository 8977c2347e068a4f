//! Generated messages and gRPC services: TiKV's RawKV and PD, and Flotilla's own.
