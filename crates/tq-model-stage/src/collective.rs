//! What data-parallel trainers do together: add up gradients, totals, and hear each other's metrics.

use std::time::{Duration, Instant};

use anyhow::Result;
use tq_model::{Model, TorchModel, train::Flat};
use transferqueue::{Error, Gang};

/// Called while a rank waits for others, so that it can prolong what it holds.
pub type Alive<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// Ranks that train one model. Every rank makes the same calls in the same order.
///
/// Another implementation (NCCL) takes gradients where the model keeps them; this one's vectors go through the host's
/// memory.
pub trait Collective {
    /// Which rank this is, from 0.
    fn rank(&self) -> u64;

    /// How many there are.
    fn ranks(&self) -> u64;

    /// The gathered gradients of all ranks, added up in an order that is always the same, in the place of this rank's own.
    ///
    /// # Errors
    /// When a rank does not come (the message names it), or the gang has ended ([`Error::is_lost`]: begin again).
    fn sum_gradients(&mut self, model: &mut TorchModel, alive: Alive<'_>) -> Result<()>;

    /// Adds up numbers over all ranks, in place.
    ///
    /// # Errors
    /// As [`Collective::sum_gradients`].
    fn sum(&mut self, numbers: &mut [f64], alive: Alive<'_>) -> Result<()>;

    /// What each rank says, in the order of ranks. No rank goes on before all have said it.
    ///
    /// # Errors
    /// As [`Collective::sum_gradients`].
    fn gather(&mut self, message: Vec<u8>, alive: Alive<'_>) -> Result<Vec<Vec<u8>>>;
}

/// One worker that trains alone: there is nobody to wait for.
pub struct Alone;

impl Collective for Alone {
    fn rank(&self) -> u64 {
        0
    }

    fn ranks(&self) -> u64 {
        1
    }

    fn sum_gradients(&mut self, _: &mut TorchModel, _: Alive<'_>) -> Result<()> {
        Ok(())
    }

    fn sum(&mut self, _: &mut [f64], _: Alive<'_>) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, message: Vec<u8>, _: Alive<'_>) -> Result<Vec<Vec<u8>>> {
        Ok(vec![message])
    }
}

/// Ranks that meet in the store, over whatever channel each has to it.
pub struct OverStore {
    gang: Gang,
    patience: Duration,
}

impl OverStore {
    /// For one life of a gang. `patience`: how long a rank waits for the others before it gives up.
    pub fn new(gang: Gang, patience: Duration) -> Self {
        Self { gang, patience }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }
}

impl Collective for OverStore {
    fn rank(&self) -> u64 {
        self.gang.rank().into()
    }

    fn ranks(&self) -> u64 {
        self.gang.ranks().into()
    }

    fn sum_gradients(&mut self, model: &mut TorchModel, alive: Alive<'_>) -> Result<()> {
        let deadline = self.deadline();
        let mut gradients = model.gathered()?;
        match &mut gradients {
            Flat::F32(values) => self.gang.sum(values, deadline, alive)?,
            Flat::F64(values) => self.gang.sum(values, deadline, alive)?,
        }
        Ok(model.replace_gathered(&gradients)?)
    }

    fn sum(&mut self, numbers: &mut [f64], alive: Alive<'_>) -> Result<()> {
        let deadline = self.deadline();
        Ok(self.gang.sum(numbers, deadline, alive)?)
    }

    fn gather(&mut self, message: Vec<u8>, alive: Alive<'_>) -> Result<Vec<Vec<u8>>> {
        let deadline = self.deadline();
        Ok(self.gang.gather(message, deadline, alive)?)
    }
}
