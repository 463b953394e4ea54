//! The store as its own link: calls of sessions in this process.

use std::{sync::Arc, time::Instant};

use event_listener::Listener;

use super::{Store, core::Attempt, waiters::Waiters};
use crate::{
    catalog::{
        Newest, Refusal,
        command::{BatchRef, Claimed, Command, Reply, Request, RowHead},
        definition::{Definition, Partition},
    },
    error::Error,
    ids::{ModelId, PartitionId, Rows, SessionId, TaskId},
    link::Link,
};

impl Link for Store {
    fn call(&self, session: Option<SessionId>, command: Command, deadline: Option<Instant>) -> Result<Reply, Error> {
        let shared = &self.shared;
        let key = Waiters::key(&command);
        let mut request = Request { caller: None, command };
        // Mostly nothing has to be waited for, and no listener is needed.
        let mut wait = match shared.attempt(session, &mut request)? {
            Attempt::Answered(reply) => return Ok(reply),
            Attempt::Later(wait) => wait,
        };
        let mut late = false;
        while let (Some(key), Some(deadline), false) = (key, deadline, late) {
            // Register, ask again, and only then sleep: what happens in between wakes this listener.
            let listener = shared.waiters.listen(key);
            match shared.attempt(session, &mut request)? {
                Attempt::Answered(reply) => return Ok(reply),
                Attempt::Later(now) => wait = now,
            }
            late = listener.wait_deadline(deadline).is_none();
        }
        if late {
            // The wait as it stands now, not as it stood when the sleep began.
            match shared.attempt(session, &mut request)? {
                Attempt::Answered(reply) => return Ok(reply),
                Attempt::Later(now) => wait = now,
            }
        }
        Err(Error::Deadline(Box::new(wait)))
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
        loop {
            // Registered before asking, as in `call`; one listener serves all of the tasks.
            let listener = self.shared.waiters.listen_to_tasks();
            let mut waits = Vec::new();
            for &task in tasks {
                let mut request = Request { caller: None, command: Command::Claim { task, limit } };
                match self.shared.attempt(Some(session), &mut request)? {
                    Attempt::Answered(Reply::Claimed(claimed)) => return Ok(Some((task, claimed))),
                    Attempt::Answered(Reply::Ended) => {}
                    Attempt::Answered(other) => {
                        return Err(Error::Protocol { command: "claim", found: format!("{other:?}") });
                    }
                    Attempt::Later(wait) => waits.push(wait),
                }
            }
            let Some(wait) = waits.into_iter().next() else {
                return Ok(None);
            };
            if Instant::now() >= deadline {
                return Err(Error::Deadline(Box::new(wait)));
            }
            // At the deadline the tasks are asked once more, so that the message says how things stand then.
            listener.wait_deadline(deadline);
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
