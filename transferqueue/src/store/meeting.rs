//! Where the ranks of a gang meet: what each brings to a round is kept until all have come, and what came of it until
//! all have gone on to the next. Memory of this process alone: a gang that ends takes its rounds with it.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use crate::{
    catalog::Refusal,
    gang::{Brought, Op, Values},
    ids::TaskId,
};

/// What came of a round, for every rank: one sum, or what each rank brought, in the order of ranks.
pub(crate) type Outcome = Arc<Vec<Values>>;

/// The rounds of every gang in its present life.
#[derive(Default)]
pub(super) struct Meetings {
    gangs: Mutex<HashMap<TaskId, Meeting>>,
}

struct Meeting {
    epoch: u64,
    /// By number. At most two are kept: the one under way, and the one that a slow rank has yet to hear.
    rounds: BTreeMap<u64, Round>,
    /// The last round each rank came to.
    reached: Vec<u64>,
}

struct Round {
    since: Instant,
    op: Op,
    brought: Vec<Option<Values>>,
    outcome: Option<Outcome>,
}

/// A rank that has come, and whom it waits for.
pub(crate) struct Present {
    pub(crate) outcome: Option<Outcome>,
    /// It was the last to come: the others can be woken.
    pub(crate) last: bool,
    /// Ranks that have not come.
    pub(crate) missing: Vec<u32>,
    /// Milliseconds since the first rank came.
    pub(crate) for_ms: u64,
}

impl Meetings {
    /// A rank comes to a round, or looks again.
    ///
    /// # Errors
    /// When the ranks disagree about what is done, or one comes to a round that is over.
    pub(super) fn come(
        &self,
        task: (TaskId, &str),
        (epoch, rank, ranks): (u64, u32, u32),
        brought: &mut Brought,
    ) -> Result<Present, Refusal> {
        let mut gangs = self.lock();
        // All ranks came to its first round; who comes to a later one and is not known brings it from another life of this
        // process.
        if brought.number > 1 && gangs.get(&task.0).is_none_or(|meeting| meeting.epoch < epoch) {
            let why = format!("round {} of epoch {epoch} began before the store's process did", brought.number);
            return Err(Refusal::GangEnded { task: task.1.to_owned(), why });
        }
        let fresh = || Meeting { epoch, rounds: BTreeMap::new(), reached: vec![0; ranks as usize] };
        let meeting = gangs.entry(task.0).or_insert_with(fresh);
        match meeting.epoch.cmp(&epoch) {
            Ordering::Less => *meeting = fresh(),
            Ordering::Equal => {}
            Ordering::Greater => {
                let why = format!("epoch {epoch} is over, now is epoch {}", meeting.epoch);
                return Err(Refusal::GangEnded { task: task.1.to_owned(), why });
            }
        }
        let refuse = |found: String| Refusal::Gang {
            task: task.1.to_owned(),
            found,
            hint: "every rank goes through the same rounds in the same order".to_owned(),
        };
        let (number, me) = (brought.number, rank as usize);
        let over = meeting.reached.iter().copied().min().unwrap_or_default();
        if number < over || number == 0 {
            return Err(refuse(format!("rank {rank} comes to round {number}, all ranks have gone on to round {over}")));
        }
        meeting.reached[me] = meeting.reached[me].max(number);
        let op = brought.op;
        let round = meeting.rounds.entry(number).or_insert_with(|| Round {
            since: Instant::now(),
            op,
            brought: (0..ranks).map(|_| None).collect(),
            outcome: None,
        });
        if round.outcome.is_none() && round.brought[me].is_none() {
            let Some(values) = brought.values.take() else {
                return Err(refuse(format!("rank {rank} comes to round {number} again, and what it brought is gone")));
            };
            let other = (0..).zip(&round.brought).find_map(|(rank, other)| Some((rank, other.as_ref()?)));
            if let Some((other, there)) = other
                && (round.op != op || op == Op::Sum && !there.fits(&values))
            {
                return Err(refuse(format!(
                    "rank {rank} brings {} to round {number} ({op:?}), rank {other} brought {} ({:?})",
                    values.shape(),
                    there.shape(),
                    round.op
                )));
            }
            round.brought[me] = Some(values);
        }
        let last = round.outcome.is_none() && round.brought.iter().all(Option::is_some);
        if last {
            let all = round.brought.iter_mut().filter_map(Option::take);
            let outcome = match op {
                Op::Sum => all.reduce(Values::plus).into_iter().collect(),
                Op::Gather => all.collect(),
            };
            round.outcome = Some(Arc::new(outcome));
        }
        let missing = (0..).zip(&round.brought).filter(|(_, brought)| brought.is_none()).map(|(rank, _)| rank);
        let present = Present {
            missing: if round.outcome.is_some() { Vec::new() } else { missing.collect() },
            outcome: round.outcome.clone(),
            last,
            for_ms: round.since.elapsed().as_millis() as u64,
        };
        let over = meeting.reached.iter().copied().min().unwrap_or_default();
        meeting.rounds.retain(|number, _| *number >= over);
        Ok(present)
    }

    /// A gang has ended.
    pub(super) fn forget(&self, task: TaskId) {
        self.lock().remove(&task);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Meeting>> {
        self.gangs.lock().unwrap_or_else(|error| error.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn come(meetings: &Meetings, epoch: u64, rank: u32, number: u64) -> Result<Present, Refusal> {
        let values = Some(Values::F32(vec![1.0]));
        let mut brought = Brought { epoch, number, op: Op::Sum, values };
        meetings.come((TaskId(0), "actor"), (epoch, rank, 2), &mut brought)
    }

    #[test]
    fn ranks_of_a_store_that_was_killed_hear_that_their_rounds_are_gone() {
        let before = Meetings::default();
        assert!(come(&before, 3, 0, 1).unwrap().outcome.is_none());
        assert!(come(&before, 3, 1, 1).unwrap().outcome.is_some());
        // The next life: one rank has heard the sum and goes on, the other asks for it again.
        let after = Meetings::default();
        let Err(Refusal::GangEnded { why, .. }) = come(&after, 3, 0, 2) else { panic!("round 2 has no first") };
        assert_eq!(why, "round 2 of epoch 3 began before the store's process did");
        assert_eq!(come(&after, 3, 1, 1).unwrap().missing, [0]);
        // Both begin again.
        assert!(come(&after, 4, 0, 1).unwrap().outcome.is_none());
        assert!(come(&after, 4, 1, 1).unwrap().outcome.is_some());
        assert!(matches!(come(&after, 3, 1, 1), Err(Refusal::GangEnded { .. })));
    }
}
