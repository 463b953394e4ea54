//! The rules of the catalog, one test a rule.

#![allow(unreachable_pub, reason = "a test binary exports nothing")]

#[path = "../catalog_support/mod.rs"]
mod catalog_support;
mod batches;
mod claims;
mod definitions;
mod explanations;
mod leases;
mod lifecycle;
mod publications;
mod schedules;
mod validation;
mod writes;
