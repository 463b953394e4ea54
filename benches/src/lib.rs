//! Benchmarks against limits and peers.
