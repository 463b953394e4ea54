//! Actions: numbered commands of sessions, and questions.

use std::time::Duration;

use arrow_flight::Action;
use bytes::Bytes;
use event_listener::EventListener;
use futures::{StreamExt, stream};
use prost::Message;
use tonic::Status;

use super::{
    limits,
    service::{Answers, Service, invalid},
    ucx, writing,
};
use crate::{
    catalog::command::{Command, Request},
    error::Error,
    ids::{ChunkId, ModelId, PartitionId, SessionId},
    inspect,
    link::Link,
    store::{asking::Asked, core::Sender},
    wire::{
        self, Answer, Call, FEATURE_ALONG, Failure, Hello, Name, Nothing, Number, Outcome, PROTOCOL, Resolve, Resolved,
        Welcome, action, decode, json, parse,
    },
};

pub(crate) async fn act(service: &Service, request: Action) -> Result<Answers<arrow_flight::Result>, Status> {
    let body = request.body;
    if request.r#type == action::CALL {
        return call(service, &body);
    }
    let outcome = match request.r#type.as_str() {
        action::UCX => return ucx::act(service, &body).await,
        action::PROGRAM => program(service, body).await,
        action::MEET => super::gang::meet(service, &body).await,
        other => question(service, other, &body),
    };
    Ok(stream::iter([Ok(answer(outcome?))]).boxed())
}

pub(super) fn answer(outcome: Outcome) -> arrow_flight::Result {
    arrow_flight::Result::new(Answer::new(outcome).encode_to_vec())
}

fn failed(error: &Error) -> Outcome {
    Outcome::Failure(Failure::of(error))
}

fn message(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// A command. Its first answer comes at once; one that has to wait is told when asking again is worth it.
fn call(service: &Service, body: &[u8]) -> Result<Answers<arrow_flight::Result>, Status> {
    let call: Call = decode("call", body).map_err(invalid)?;
    let (outcome, listener) = asked(service, &call).map_err(invalid)?;
    let first = stream::iter([Ok(answer(outcome))]);
    Ok(match listener {
        Some(listener) => {
            let longest = Duration::from_millis(call.wait_ms.unwrap_or_default()).min(limits::WAIT);
            first.chain(stream::once(woken(listener, longest))).boxed()
        }
        None => first.boxed(),
    })
}

/// A command of a worker on this host, which is not woken.
pub(super) fn asked_once(service: &Service, call: Call) -> Outcome {
    let answered = asked(service, &Call { wait_ms: None, ..call });
    answered.map_or_else(|why| Outcome::Failure(Failure::other(why)), |(outcome, _)| outcome)
}

/// What a command brings; for one that has to wait and wants to be woken, the listener that will be. An error: it is no command.
fn asked(service: &Service, call: &Call) -> Result<(Outcome, Option<EventListener>), String> {
    let mut command: Command = parse("command", &call.command)?;
    check(service, &command, call.session)?;
    let caller = call.session.map(|id| (SessionId(id), call.seq));
    if let Some(caller) = caller
        && let Err(error) = cells(service, caller, &mut command, call)
    {
        return Ok((failed(&error), None));
    }
    let mut request = Request { caller: None, command };
    let sender = Sender::Wire { caller, attempt: call.attempt };
    Ok(match service.ask(sender, &mut request, call.wait_ms.is_some()) {
        Ok(Asked::Answered(reply)) => (Outcome::Reply(json(&reply)), None),
        Ok(Asked::Later(wait, listener)) => (Outcome::Later(json(&wait)), listener),
        Err(error) => (failed(&error), None),
    })
}

/// What a call says of cells beside its command: which nobody will name, and those that come along.
fn cells(service: &Service, caller: (SessionId, u64), command: &mut Command, call: &Call) -> Result<(), Error> {
    if !call.released.is_empty() || !call.unwanted.is_empty() {
        let spots = call.released.iter().map(|spot| (ChunkId(spot.chunk), spot.slot));
        service.store.let_go(caller.0, spots, &call.unwanted)?;
    }
    writing::along(service, caller, command, &call.along)
}

/// Sleeps without a thread. A client that leaves takes its listener with it.
async fn woken(listener: EventListener, longest: Duration) -> Result<arrow_flight::Result, Status> {
    // Asking again is in order whether something changed or the time is up.
    let _ = tokio::time::timeout(longest, listener).await;
    Ok(answer(Outcome::Woken(Nothing {})))
}

/// What the catalog does not look at because its callers in this process do not do it.
fn check(service: &Service, command: &Command, session: Option<u64>) -> Result<(), String> {
    let name = |name: &str| match name.len() <= limits::NAME_BYTES {
        true => Ok(()),
        false => Err(format!("a name of {} bytes; at most {}", name.len(), limits::NAME_BYTES)),
    };
    match command {
        Command::Lose(_) | Command::Spill { .. } | Command::Forget { .. } | Command::Tick | Command::Settle => {
            Err("only the store itself sends this command".to_owned())
        }
        Command::OpenSession { here: true, .. } => Err("a session of another process is not `here`".to_owned()),
        Command::OpenSession { .. } if session.is_some() => Err("a session is opened without a session".to_owned()),
        Command::OpenSession { name: asked, .. } => {
            let there = service.store.with_state(|state, _| state.count_sessions()).unwrap_or_default();
            if there >= limits::SESSIONS {
                return Err(format!("{there} sessions live already; close one"));
            }
            name(asked)
        }
        _ if session.is_none() => Err("this command needs a session".to_owned()),
        Command::CreatePartition(partition) => {
            partition.columns.iter().map(|column| column.name.as_str()).try_for_each(name)?;
            name(&partition.name)
        }
        Command::ClaimAny { tasks, .. } if tasks.len() > limits::COLUMNS => {
            Err(format!("a claim for {} tasks; at most {}", tasks.len(), limits::COLUMNS))
        }
        _ => Ok(()),
    }
}

fn question(service: &Service, name: &str, body: &[u8]) -> Result<Outcome, Status> {
    let store = &service.store;
    let narrow = |number: u64| u32::try_from(number).map_err(|_| invalid(format!("no id is {number}")));
    let number = || decode::<Number>("number", body).map_err(invalid).map(|message| message.number);
    let reply = match name {
        action::HANDSHAKE => Ok(message(&welcome(service, &decode("handshake", body).map_err(invalid)?)?)),
        action::RESOLVE => {
            let wanted = decode::<Resolve>("question for a pointer", body).map_err(invalid)?;
            let rows = wire::rows(&wanted.rows).ok_or_else(|| invalid("row ids run over"))?;
            if wanted.columns.len() > limits::COLUMNS || wanted.rows.len() > limits::RUNS {
                let (columns, runs) = (limits::COLUMNS, limits::RUNS);
                return Err(invalid(format!("a pointer has at most {columns} columns and {runs} runs of rows")));
            }
            let columns: Vec<&str> = wanted.columns.iter().map(String::as_str).collect();
            let partition = PartitionId(narrow(wanted.partition)?);
            let resolved = store.resolve(partition, (!wanted.all).then_some(&rows), &columns);
            resolved.map(|(pointer, heads)| message(&Resolved { pointer: json(&pointer), heads: json(&heads) }))
        }
        action::PARTITION => {
            let Name { name } = decode("name", body).map_err(invalid)?;
            store.partition(&name).map(|id| message(&Number { number: id.0.into() }))
        }
        action::DESCRIBE => store.describe(PartitionId(narrow(number()?)?)).map(|partition| json(&*partition)),
        action::NEWEST => {
            let model = u16::try_from(number()?).map_err(|_| invalid("no model has that number"))?;
            store.newest(ModelId(model)).map(|newest| json(&newest))
        }
        action::BORN => store.born(PartitionId(narrow(number()?)?)).map(|number| message(&Number { number })),
        action::DEFINITION => Ok(json(&*store.definition())),
        action::STOP => {
            let Name { name: reason } = decode("reason", body).map_err(invalid)?;
            store.stop(reason);
            Ok(Bytes::new())
        }
        action::INSPECT => {
            let request: inspect::Request = parse("inspection", body).map_err(invalid)?;
            Ok(json(&inspect::answer(store, &request)))
        }
        other => {
            let known = action::ALL.map(|(name, _)| name).join(", ");
            return Err(invalid(format!("no action `{other}`; there are: {known}")));
        }
    };
    Ok(reply.map_or_else(|error| failed(&error), Outcome::Reply))
}

fn welcome(service: &Service, hello: &Hello) -> Result<Welcome, Status> {
    if hello.protocol != PROTOCOL {
        let found = hello.protocol;
        return Err(invalid(format!("the client speaks protocol {found}, this server {PROTOCOL}: use one version")));
    }
    Ok(Welcome {
        protocol: PROTOCOL,
        incarnation: service.incarnation,
        features: vec!["flight".to_owned(), FEATURE_ALONG.to_owned()],
        message_bytes: service.message_bytes as u64,
        shm: service.shm.clone(),
        ucx: service.ucx.as_ref().map(|ucx| ucx.offer().clone()),
    })
}

/// The program's own messages may block, so they have a thread.
async fn program(service: &Service, body: Bytes) -> Result<Outcome, Status> {
    let Some(program) = service.program.clone() else {
        return Err(invalid("no program takes messages here"));
    };
    let answered = tokio::task::spawn_blocking(move || program(&body)).await;
    Ok(match answered {
        Ok(Ok(bytes)) => Outcome::Reply(bytes.into()),
        Ok(Err(why)) => Outcome::Failure(Failure::other(why)),
        Err(error) => Outcome::Failure(Failure::other(format!("the program's handler failed: {error}"))),
    })
}
