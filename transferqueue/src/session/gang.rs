//! One rank of a gang: its workers claim shares of the same batches and add up vectors.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{Session, unexpected};
use crate::{
    catalog::command::{Command, Reply},
    error::Error,
    gang::{Brought, Op, Values},
    ids::TaskId,
};

/// Elements of one round: 4 MiB of f32. A longer vector goes through several, and every message stays small.
const PART: usize = 1 << 20;
/// How often a rank that waits is heard of: so many times in the life of a lease.
const SIGNS: u64 = 4;

/// A rank of a training task's gang, from [`Session::join`]. Every rank goes through the same rounds in the same order. It
/// is good for one life of the gang: once a rank is lost, every call and every claim is refused
/// ([`Error::is_lost`]), and all ranks join again.
pub struct Gang {
    session: Session,
    task: TaskId,
    rank: u32,
    ranks: u32,
    epoch: u64,
    /// Rounds gone through.
    number: u64,
    /// Between two signs of life of a rank that waits.
    sign: Duration,
}

/// Elements that ranks add up.
pub trait Addend: Copy + Sized {
    #[doc(hidden)]
    fn wrap(values: Vec<Self>) -> Values;
    #[doc(hidden)]
    fn unwrap(values: &Values) -> Option<&[Self]>;
}

impl Addend for f32 {
    fn wrap(values: Vec<Self>) -> Values {
        Values::F32(values)
    }
    fn unwrap(values: &Values) -> Option<&[Self]> {
        if let Values::F32(values) = values { Some(values) } else { None }
    }
}

impl Addend for f64 {
    fn wrap(values: Vec<Self>) -> Values {
        Values::F64(values)
    }
    fn unwrap(values: &Values) -> Option<&[Self]> {
        if let Values::F64(values) = values { Some(values) } else { None }
    }
}

impl Session {
    /// Becomes one rank of a training task's gang. Claims of the task then return this rank's shares.
    ///
    /// # Errors
    /// [`Error::Refused`] when the task declares no gang, has no such rank, or another session holds it.
    pub fn join(&self, task: &str, rank: u32) -> Result<Gang, Error> {
        let id = self.task(task)?;
        let def = &self.definition().tasks[id.0 as usize];
        let ranks = def.gang.as_ref().map_or(0, |gang| gang.ranks);
        let sign = Duration::from_millis(def.lease_ms / SIGNS);
        match self.call(Command::Join { task: id, rank }, None)? {
            Reply::Joined { epoch } => {
                Ok(Gang { session: self.clone(), task: id, rank, ranks, epoch, number: 0, sign })
            }
            other => Err(unexpected("join", &other)),
        }
    }
}

impl Gang {
    /// Which rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Of how many.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Which life of the gang.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Adds up a vector over all ranks, in place: rank 0 + rank 1 + …, the same bits on every rank. `alive` is called while
    /// it waits, four times in the life of a lease: a rank that waits for others has to prolong its own.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming the ranks that have not come; [`Error::Refused`] when the gang has ended, or another rank
    /// brings a vector of another type or length; [`Error::Stopped`]; what `alive` says. The vector is then of no use.
    pub fn sum<T: Addend>(
        &mut self,
        values: &mut [T],
        deadline: Instant,
        alive: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        for part in values.chunks_mut(PART) {
            let outcome = self.round(Op::Sum, T::wrap(part.to_vec()), deadline, alive)?;
            let sum = outcome.first().and_then(T::unwrap).filter(|sum| sum.len() == part.len());
            let odd = || Error::Protocol { command: "sum", found: "a vector of another type or length".to_owned() };
            part.copy_from_slice(sum.ok_or_else(odd)?);
        }
        Ok(())
    }

    /// What every rank brings, in the order of ranks.
    ///
    /// # Errors
    /// As [`Gang::sum`].
    pub fn gather(
        &mut self,
        message: Vec<u8>,
        deadline: Instant,
        alive: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let outcome = self.round(Op::Gather, Values::Bytes(message), deadline, alive)?;
        let bytes = |values: &Values| match values {
            Values::Bytes(bytes) => Ok(bytes.clone()),
            other => Err(Error::Protocol { command: "gather", found: other.shape() }),
        };
        outcome.iter().map(bytes).collect()
    }

    fn round(
        &mut self,
        op: Op,
        values: Values,
        deadline: Instant,
        alive: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<std::sync::Arc<Vec<Values>>, Error> {
        let number = self.number + 1;
        let mut brought = Brought { epoch: self.epoch, number, op, values: Some(values) };
        let (link, session) = (&self.session.inner.link, self.session.inner.id);
        loop {
            match link.meet(session, self.task, &mut brought, deadline.min(Instant::now() + self.sign)) {
                Err(error) if error.is_deadline() && Instant::now() < deadline => alive()?,
                outcome => {
                    self.number = number;
                    return outcome;
                }
            }
        }
    }
}

impl fmt::Debug for Gang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, ranks, epoch, .. } = self;
        write!(f, "rank {rank} of {ranks} (epoch {epoch}) by {:?}", self.session)
    }
}
