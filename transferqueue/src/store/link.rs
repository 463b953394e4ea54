//! The store as its own link: calls of sessions in this process.

use std::{sync::Arc, time::Instant};

use event_listener::Listener;

use super::{Store, asking::Asked, core::Sender, gang::Met};
use crate::{
    catalog::{
        Newest, Refusal,
        command::{BatchRef, Claimed, Command, Reply, Request, RowHead},
        definition::{Definition, Partition},
    },
    error::Error,
    gang::{Brought, Values},
    ids::{ModelId, PartitionId, Rows, SessionId, TaskId},
    link::Link,
};

impl Link for Store {
    fn call(&self, session: Option<SessionId>, command: Command, deadline: Option<Instant>) -> Result<Reply, Error> {
        let command = match command {
            // It ends with this process.
            Command::OpenSession { name, .. } => Command::OpenSession { name, here: true },
            other => other,
        };
        let mut request = Request { caller: None, command };
        loop {
            // Asked once more after the deadline: the wait as it stands then, not as it stood when the sleep began.
            let sleep = deadline.filter(|deadline| *deadline > Instant::now());
            let (wait, listener) = match self.ask(Sender::Here(session), &mut request, sleep.is_some())? {
                Asked::Answered(reply) => return Ok(reply),
                Asked::Later(wait, listener) => (wait, listener),
            };
            match (listener, sleep) {
                (Some(listener), Some(deadline)) => drop(listener.wait_deadline(deadline)),
                _ => return Err(Error::Deadline(Box::new(wait))),
            }
        }
    }

    fn resolve(
        &self,
        partition: PartitionId,
        rows: Option<&Rows>,
        columns: &[&str],
    ) -> Result<(BatchRef, Vec<RowHead>), Error> {
        let core = self.shared.lock()?;
        let state = core.catalog.state();
        let all;
        let rows = match rows {
            Some(rows) => rows,
            None => {
                all = state.rows(partition)?;
                &all
            }
        };
        Ok((state.refer(partition, rows, columns)?, state.heads(partition, rows)?))
    }

    fn partition(&self, name: &str) -> Result<PartitionId, Error> {
        let core = self.shared.lock()?;
        let state = core.catalog.state();
        state.partition(name).ok_or_else(|| {
            let known: Vec<String> = state.partitions().into_iter().map(|view| format!("`{}`", view.name)).collect();
            let (what, name) = ("partition".to_owned(), format!("`{name}`"));
            Refusal::Unknown { what, name, known: known.join(", ") }.into()
        })
    }

    fn describe(&self, partition: PartitionId) -> Result<Arc<Partition>, Error> {
        Ok(Arc::new(self.shared.lock()?.catalog.state().describe(partition)?))
    }

    fn claim_any(
        &self,
        session: SessionId,
        tasks: &[TaskId],
        limit: u64,
        deadline: Instant,
    ) -> Result<Option<(TaskId, Claimed)>, Error> {
        let command = Command::ClaimAny { tasks: tasks.to_vec(), limit };
        match self.call(Some(session), command, Some(deadline))? {
            Reply::ClaimedAny { task, claimed } => Ok(Some((task, claimed))),
            Reply::Ended => Ok(None),
            other => Err(Error::Protocol { command: "claim", found: format!("{other:?}") }),
        }
    }

    fn meet(
        &self,
        session: SessionId,
        task: TaskId,
        brought: &mut Brought,
        deadline: Instant,
    ) -> Result<Arc<Vec<Values>>, Error> {
        loop {
            let late = Instant::now() >= deadline;
            match self.come(session, task, brought)? {
                Met::All(outcome) => return Ok(outcome),
                Met::Later(wait, _) if late => return Err(Error::Deadline(Box::new(wait))),
                Met::Later(_, listener) => drop(listener.wait_deadline(deadline)),
            }
        }
    }

    fn newest(&self, model: ModelId) -> Result<Newest, Error> {
        Ok(self.shared.lock()?.catalog.state().newest(model)?)
    }

    fn born(&self, partition: PartitionId) -> Result<u64, Error> {
        Ok(self.shared.lock()?.catalog.state().born(partition)?)
    }

    fn stop(&self, reason: String) {
        Self::stop(self, reason);
    }

    fn definition(&self) -> Arc<Definition> {
        self.shared.definition.clone()
    }
}
