//! The catalog, from afar.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use prost::Message;

use super::{Remote, runtime::block_on};
use crate::{
    catalog::{
        Newest,
        command::{BatchRef, Claimed, Command, Reply, RowHead},
        definition::{Definition, Partition},
    },
    error::Error,
    gang::{Brought, Values},
    ids::{ModelId, PartitionId, Rows, SessionId, TaskId},
    link::Link,
    wire::{self, Name, Number, Resolve, Resolved, action},
};

impl Remote {
    fn number(&self, action: &'static str, number: u64) -> Result<Bytes, Error> {
        self.inner.asked(action, Number { number }.encode_to_vec().into())
    }
}

impl Link for Remote {
    fn call(&self, session: Option<SessionId>, command: Command, deadline: Option<Instant>) -> Result<Reply, Error> {
        block_on(self.inner.call(session, &command, deadline, self.inner.shm.as_deref()))
    }

    fn resolve(
        &self,
        partition: PartitionId,
        rows: Option<&Rows>,
        columns: &[&str],
    ) -> Result<(BatchRef, Vec<RowHead>), Error> {
        let resolve = Resolve {
            partition: partition.0.into(),
            rows: rows.map(wire::runs).unwrap_or_default(),
            all: rows.is_none(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        };
        let channels = &self.inner.channels;
        let answer = self.inner.asked(action::RESOLVE, resolve.encode_to_vec().into())?;
        let resolved: Resolved = channels.message(action::RESOLVE, &answer)?;
        let pointer: BatchRef = channels.parse(action::RESOLVE, &resolved.pointer)?;
        let heads: Vec<RowHead> = channels.parse(action::RESOLVE, &resolved.heads)?;
        if heads.len() as u64 != pointer.rows.len() || pointer.columns.len() != columns.len() {
            return Err(channels.nonsense(action::RESOLVE, "a pointer to other rows or columns"));
        }
        Ok((pointer, heads))
    }

    fn partition(&self, name: &str) -> Result<PartitionId, Error> {
        let answer = self.inner.asked(action::PARTITION, Name { name: name.to_owned() }.encode_to_vec().into())?;
        let Number { number } = self.inner.channels.message(action::PARTITION, &answer)?;
        let id = u32::try_from(number).map_err(|_| self.inner.channels.nonsense(action::PARTITION, "no id"))?;
        Ok(PartitionId(id))
    }

    fn describe(&self, partition: PartitionId) -> Result<Arc<Partition>, Error> {
        let answer = self.number(action::DESCRIBE, partition.0.into())?;
        Ok(Arc::new(self.inner.channels.parse(action::DESCRIBE, &answer)?))
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
        block_on(self.inner.meet(session, task, brought, deadline))
    }

    fn newest(&self, model: ModelId) -> Result<Newest, Error> {
        let answer = self.number(action::NEWEST, model.0.into())?;
        self.inner.channels.parse(action::NEWEST, &answer)
    }

    fn born(&self, partition: PartitionId) -> Result<u64, Error> {
        let answer = self.number(action::BORN, partition.0.into())?;
        let Number { number } = self.inner.channels.message(action::BORN, &answer)?;
        Ok(number)
    }

    fn stop(&self, reason: String) {
        // A store that cannot be reached hears of this worker's end by its silence.
        if let Err(error) = self.inner.asked(action::STOP, Name { name: reason }.encode_to_vec().into()) {
            tracing::warn!(%error, "the store was not told to stop");
        }
    }

    fn definition(&self) -> Arc<Definition> {
        self.inner.definition.clone()
    }
}
