//! `store:`, where the rows are held and who may come to them.

use std::net::SocketAddr;

use tq_config::{Node, Refusal, Refusals};

use super::section;
use crate::{
    entry,
    plan::{Listen, Store},
};

/// Reads the section.
pub(super) fn plan(pipeline: &Node, refusals: &mut Refusals) -> Store {
    let given: entry::Store = section(pipeline, "store", refusals).unwrap_or_default();
    let mut refuse = |key: &str, found: String, expected: &str| {
        let mut refusal = Refusal::new(key, found, expected);
        refusal.at = pipeline.get(key).map(|node| Box::new(node.place().clone()));
        refusals.push(refusal);
    };
    let budget = given.budget.map(|bytes| bytes.0);
    let Some(listen) = given.listen else {
        if given.tls.is_some() || given.insecure {
            let key = if given.tls.is_some() { "store.tls" } else { "store.insecure" };
            refuse(key, "no `store.listen`".to_owned(), "the address that it is for");
        }
        return Store { budget, listen: None };
    };
    let Ok(address) = listen.parse::<SocketAddr>() else {
        refuse("store.listen", format!("`{listen}`"), "ADDRESS:PORT, such as 127.0.0.1:7788 or 0.0.0.0:7788");
        return Store { budget, listen: None };
    };
    match (&given.tls, given.insecure) {
        (Some(_), true) => refuse("store.insecure", "true beside `store.tls`".to_owned(), "one of them"),
        (None, false) if !address.ip().is_loopback() => {
            let found = format!("{address}, which other hosts reach, and nothing is encrypted");
            refuse("store.listen", found, "`store.tls: {cert, key}`, or `store.insecure: true`");
        }
        _ => {}
    }
    Store { budget, listen: Some(Listen { address, insecure: given.insecure, tls: given.tls }) }
}
