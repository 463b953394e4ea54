//! The rules of the catalog, one test a rule.

#![allow(unreachable_pub, reason = "a test binary exports nothing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batches;
#[path = "../catalog_support/mod.rs"]
mod catalog_support;
mod claims;
mod definitions;
mod explanations;
mod gangs;
mod leases;
mod lifecycle;
mod publications;
mod replays;
mod reuse;
mod saves;
mod schedules;
mod validation;
mod weights;
mod writes;
