//! Messages of `tq.v1`, and JSON that people and their tools send.

use super::{gate, world::World};
use crate::{
    catalog::{
        Refusal,
        command::{BatchRef, Claimed, ColumnRef, Command, Reply, RowHead},
        definition::{Definition, Partition},
        wait::Wait,
    },
    inspect,
    wire::{
        self, Answer, Call, Failure, Hello, Name, Number, Outcome, Placed, Put, Resolve, Resolved, Ticket, Welcome,
        decode, parse, ucx,
    },
};

/// Any message (the first byte says which), and what either side makes of it.
pub fn messages(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 14 {
        0 => drop(decode::<Hello>("hello", bytes)),
        1 => drop(decode::<Welcome>("welcome", bytes)),
        2 => drop(decode::<Call>("call", bytes).map(|call| command(&call.command))),
        3 => drop(decode::<Answer>("answer", bytes).map(answer)),
        4 => drop(decode::<Failure>("failure", bytes).map(failure)),
        5 => drop(decode::<Name>("name", bytes).and(decode::<Number>("number", bytes))),
        6 => {
            let Ok(rows) = decode::<Resolve>("question", bytes).map(|resolve| wire::rows(&resolve.rows)) else {
                return;
            };
            if let Some(rows) = rows {
                assert_eq!(wire::rows(&wire::runs(&rows)), Some(rows));
            }
        }
        7 => {
            let Ok(resolved) = decode::<Resolved>("pointer", bytes) else { return };
            drop(parse::<BatchRef>("pointer", &resolved.pointer).map(|pointer| Ticket::from(&pointer)));
            drop(parse::<Vec<RowHead>>("heads", &resolved.heads));
        }
        8 => {
            let Ok(ticket) = decode::<Ticket>("ticket", bytes) else { return };
            for pointer in ticket.columns {
                let Ok(column) = ColumnRef::try_from(pointer.clone()) else { continue };
                assert_eq!(wire::Pointer::from(&column), pointer);
            }
        }
        9 => {
            drop(decode::<Put>("put", bytes));
            drop(decode::<ucx::Ask>("question", bytes));
            drop(decode::<ucx::Say>("answer", bytes));
        }
        10 => drop(decode::<Placed>("place", bytes).map(|placed| placed.read(3))),
        11 => command(bytes),
        12 => reply(bytes),
        _ => gate(bytes),
    }
}

/// JSON of a command: what was understood is written and understood again.
fn command(bytes: &[u8]) {
    if let Ok(command) = parse::<Command>("command", bytes) {
        assert_eq!(parse::<Command>("command", &wire::json(&command)).as_ref(), Ok(&command));
    }
}

fn reply(bytes: &[u8]) {
    if let Ok(reply) = parse::<Reply>("reply", bytes) {
        assert_eq!(parse::<Reply>("reply", &wire::json(&reply)).as_ref(), Ok(&reply));
        if let Reply::Claimed(Claimed { batch, .. }) = reply {
            drop((batch.rows.len(), batch.rows.to_string(), Ticket::from(&batch)));
        }
    }
    drop(parse::<Wait>("wait", bytes).map(|wait| wait.to_string()));
    drop(parse::<Definition>("definition", bytes));
    drop(parse::<Partition>("partition", bytes));
}

fn answer(answer: Answer) {
    match answer.outcome {
        Some(Outcome::Reply(bytes) | Outcome::Later(bytes)) => reply(&bytes),
        Some(Outcome::Failure(sent)) => failure(sent),
        _ => {}
    }
}

fn failure(failure: Failure) {
    if let Some(wire::Kind::Refused(refused)) = &failure.kind {
        drop(parse::<Refusal>("refusal", refused).map(|refusal| refusal.to_string()));
    }
    let status = failure.clone().into_status(tonic::Code::FailedPrecondition);
    drop(wire::refused(&status, "grpc://here").map(|error| error.to_string()));
    drop(failure.into_error("grpc://here").to_string());
}

/// A line on the control socket (an even first byte), or what such a server answers.
pub fn inspect(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    if kind % 2 == 1 {
        drop(serde_json::from_slice::<inspect::Reply>(bytes).map(|reply| reply.table()));
        return;
    }
    let Ok(request) = inspect::server::parse(bytes) else { return };
    let world = World::training();
    let reply = inspect::answer(&world.store, &request);
    drop((reply.table(), serde_json::to_vec(&reply).unwrap()));
    world.verify();
}
