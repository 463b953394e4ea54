//! `store:`, where the rows are held, what survives a kill, and who may come to them.

use std::net::SocketAddr;

use tq_config::{Node, Refusal, Refusals};
use transferqueue::{Durability, client::Choice, unit::Units};

use super::section;
use crate::{
    entry,
    plan::{Listen, Spill, Store, StoreKind, patience},
};

/// A day: longer is no wait but a run that stands.
const MOST_PATIENCE: u64 = 86_400;

/// Reads the section.
pub(super) fn plan(pipeline: &Node, refusals: &mut Refusals) -> Store {
    let given: entry::Store = section(pipeline, "store", refusals).unwrap_or_default();
    let mut refuse = |key: &str, found: String, expected: &str| {
        let mut refusal = Refusal::new(key, found, expected);
        refusal.at = pipeline.get(key).map(|node| Box::new(node.place().clone()));
        refusals.push(refusal);
    };
    // A process of its own is worth having because it may be killed.
    let apart = given.kind == StoreKind::Process;
    let durability = given.durability.unwrap_or(if apart { Durability::Process } else { Durability::None });
    if apart && durability == Durability::None {
        refuse("store.durability", "`none` beside `store.kind: process`".to_owned(), "`process` or `host`");
    }
    if let Some(units) = given.units
        && !(1..=Units::MAX).contains(&units)
    {
        refuse("store.units", format!("{units}"), &format!("a number from 1 to {}", Units::MAX));
    }
    if given.arena.is_some() && durability == Durability::None {
        refuse(
            "store.arena",
            "a folder for bytes that nothing keeps".to_owned(),
            "`store.durability: process` or `host`",
        );
    }
    let spill = given.spill.filter(|spill| *spill != Spill::Run(false));
    if spill.is_some() && given.budget.is_none() {
        refuse("store.spill", "a folder for spilled cells, and no budget".to_owned(), "`store.budget` as well");
    }
    let patience = given.patience.unwrap_or_else(patience);
    if !(1..=MOST_PATIENCE).contains(&patience) {
        refuse("store.patience", format!("{patience} seconds"), "from 1 to 86400");
    }
    if !given.transport.is_built() {
        let found = format!("`{}`, which this program was built without", given.transport);
        refuse("store.transport", found, "a program built with the feature `ucx`, or `auto`, `flight`, `shm`");
    }
    if given.transport == Choice::Ucx && given.tls.is_some() {
        let found = "`ucx`, which encrypts nothing, beside `store.tls`".to_owned();
        refuse("store.transport", found, "another transport, or `store.insecure: true` instead of `store.tls`");
    }
    let store = Store {
        budget: given.budget.map(|bytes| bytes.0),
        weights: given.weights.map(|bytes| bytes.0),
        spill,
        patience,
        units: given.units,
        durability,
        arena: given.arena,
        kind: given.kind,
        transport: given.transport,
        listen: None,
    };
    let Some(listen) = given.listen else {
        if given.tls.is_some() || given.insecure {
            let key = if given.tls.is_some() { "store.tls" } else { "store.insecure" };
            refuse(key, "no `store.listen`".to_owned(), "the address that it is for");
        }
        return store;
    };
    let Ok(address) = listen.parse::<SocketAddr>() else {
        refuse("store.listen", format!("`{listen}`"), "ADDRESS:PORT, such as 127.0.0.1:7788 or 0.0.0.0:7788");
        return store;
    };
    match (&given.tls, given.insecure) {
        (Some(_), true) => refuse("store.insecure", "true beside `store.tls`".to_owned(), "one of them"),
        (None, false) if !address.ip().is_loopback() => {
            let found = format!("{address}, which other hosts reach, and nothing is encrypted");
            refuse("store.listen", found, "`store.tls: {cert, key}`, or `store.insecure: true`");
        }
        _ => {}
    }
    Store { listen: Some(Listen { address, insecure: given.insecure, tls: given.tls }), ..store }
}
