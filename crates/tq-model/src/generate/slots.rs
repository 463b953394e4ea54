//! Which request runs in which slot. Running rows always fill the first slots, so that a step runs no empty ones.

use std::collections::{HashSet, VecDeque};

use super::{FinishReason, Finished, Partial, Request};

/// A request that has entered.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) request: Request,
    /// Order of entry.
    entry: u64,
    pub(crate) response: Partial,
}

impl Row {
    /// Tokens whose keys and values are cached: the last drawn token's are not yet.
    pub(crate) fn cached(&self) -> usize {
        self.request.prompt.len() + self.response.tokens.len() - 1
    }

    pub(crate) fn push(&mut self, token: i64, log_prob: f32, version: u64) {
        self.response.tokens.push(token);
        self.response.log_probs.push(log_prob);
        self.response.versions.push(version);
    }

    fn ended(&self, stop_tokens: &[i64]) -> Option<FinishReason> {
        let last = self.response.tokens.last()?;
        if stop_tokens.contains(last) {
            Some(FinishReason::Stop)
        } else {
            (self.response.tokens.len() >= self.request.max_new_tokens).then_some(FinishReason::Length)
        }
    }

    fn finish(self, reason: FinishReason) -> Finished {
        let Partial { tokens, log_probs, versions } = self.response;
        let restricted = self.request.sampling.restricted();
        Finished { id: self.request.id, tokens, log_probs, versions, reason, restricted }
    }
}

/// The queue and the slots.
#[derive(Debug)]
pub(crate) struct Slots {
    capacity: usize,
    queue: VecDeque<Request>,
    /// Row r runs in slot r.
    rows: Vec<Row>,
    ids: HashSet<u64>,
    entered: u64,
}

/// A row's cache must be copied from one slot to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Tokens to copy.
    pub(crate) len: usize,
}

impl Slots {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, queue: VecDeque::new(), rows: Vec::with_capacity(capacity), ids: HashSet::new(), entered: 0 }
    }

    /// Queues a request; false when its id is in use.
    pub(crate) fn submit(&mut self, request: Request) -> bool {
        let fresh = self.ids.insert(request.id);
        if fresh {
            self.queue.push_back(request);
        }
        fresh
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn rows_mut(&mut self) -> &mut [Row] {
        &mut self.rows
    }

    /// Lets requests enter while there are slots and what they bring has at most `budget` tokens together (a first longer one enters alone).
    /// They take the slots from the returned one on.
    pub(crate) fn enter(&mut self, budget: usize) -> usize {
        let first = self.rows.len();
        let mut tokens = 0;
        while self.rows.len() < self.capacity {
            let Some(next) = self.queue.front() else {
                break;
            };
            tokens += next.prompt.len() + next.partial.tokens.len();
            if tokens > budget && self.rows.len() > first {
                break;
            }
            let mut request = self.queue.pop_front().expect("the queue has a front");
            let mut response = Partial::with_capacity(request.max_new_tokens);
            response.extend(std::mem::take(&mut request.partial));
            self.rows.push(Row { request, entry: self.entered, response });
            self.entered += 1;
        }
        first
    }

    /// Takes ended rows out, in order of entry, and says which rows must move to close the gaps.
    pub(crate) fn leave(&mut self, stop_tokens: &[i64]) -> (Vec<Finished>, Vec<Move>) {
        let reasons: Vec<Option<FinishReason>> = self.rows.iter().map(|row| row.ended(stop_tokens)).collect();
        let mut gone: Vec<(Row, FinishReason)> = Vec::new();
        let moves = self.remove(
            |slot| reasons[slot].is_some(),
            |slot, row| {
                gone.push((row, reasons[slot].expect("only rows with a reason are removed")));
            },
        );
        gone.sort_by_key(|(row, _)| row.entry);
        let finished: Vec<Finished> = gone.into_iter().map(|(row, reason)| row.finish(reason)).collect();
        for response in &finished {
            self.ids.remove(&response.id);
        }
        (finished, moves)
    }

    /// Takes a request back: whether there was one, and which row must move.
    pub(crate) fn cancel(&mut self, id: u64) -> (bool, Vec<Move>) {
        if !self.ids.remove(&id) {
            return (false, Vec::new());
        }
        self.queue.retain(|request| request.id != id);
        let slot = self.rows.iter().position(|row| row.request.id == id);
        (true, self.remove(|candidate| Some(candidate) == slot, |_, _| {}))
    }

    /// Removes rows by slot; the last rows that stay fill the gaps.
    fn remove(&mut self, leaves: impl Fn(usize) -> bool, mut removed: impl FnMut(usize, Row)) -> Vec<Move> {
        let stay = (0..self.rows.len()).filter(|&slot| !leaves(slot)).count();
        let gaps = (0..stay).filter(|&slot| leaves(slot));
        let movers = (stay..self.rows.len()).filter(|&slot| !leaves(slot));
        let moves: Vec<Move> =
            gaps.zip(movers).map(|(to, from)| Move { from, to, len: self.rows[from].cached() }).collect();
        for step in &moves {
            self.rows.swap(step.from, step.to);
        }
        // After the swaps a leaving row sits where its mover was, or where it always was.
        let origin: std::collections::HashMap<usize, usize> = moves.iter().map(|step| (step.from, step.to)).collect();
        for (offset, row) in self.rows.drain(stay..).enumerate() {
            let slot = stay + offset;
            removed(origin.get(&slot).copied().unwrap_or(slot), row);
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Sampling;

    fn request(id: u64, prompt: usize, max_new_tokens: usize) -> Request {
        let (prompt, partial) = (vec![0; prompt], Partial::default());
        Request { id, prompt, max_new_tokens, seed: id, sampling: Sampling::GREEDY, partial }
    }

    fn ids(slots: &Slots) -> Vec<u64> {
        slots.rows().iter().map(|row| row.request.id).collect()
    }

    fn draw(slots: &mut Slots) {
        slots.rows_mut().iter_mut().for_each(|row| row.push(5, -0.5, 7));
    }

    #[test]
    fn last_rows_fill_the_gaps_and_the_finished_come_in_order_of_entry() {
        let mut slots = Slots::new(5);
        for (id, len) in [(10, 1), (11, 3), (12, 1), (13, 3), (14, 2), (15, 1)] {
            assert!(slots.submit(request(id, 2, len)));
        }
        assert_eq!((slots.enter(100), slots.queued()), (0, 1));
        draw(&mut slots);
        let (finished, moves) = slots.leave(&[]);
        assert_eq!(finished.iter().map(|response| response.id).collect::<Vec<_>>(), [10, 12]);
        assert_eq!(moves, [Move { from: 3, to: 0, len: 2 }, Move { from: 4, to: 2, len: 2 }]);
        assert_eq!(ids(&slots), [13, 11, 14]);
        assert_eq!(slots.enter(100), 3);
        draw(&mut slots);
        let (finished, moves) = slots.leave(&[]);
        assert_eq!(finished.iter().map(|response| response.id).collect::<Vec<_>>(), [14, 15]);
        assert_eq!((moves, ids(&slots)), (vec![], vec![13, 11]));
        assert_eq!(finished[0].versions, [7, 7]);
    }

    #[test]
    fn prompts_enter_up_to_the_budget_and_a_long_one_alone() {
        let mut slots = Slots::new(9);
        for (id, prompt) in [(1, 50), (2, 6), (3, 4), (4, 1)] {
            slots.submit(request(id, prompt, 1));
        }
        assert_eq!((slots.enter(10), ids(&slots)), (0, vec![1]));
        assert_eq!((slots.enter(10), ids(&slots)), (1, vec![1, 2, 3]));
        assert_eq!((slots.enter(10), ids(&slots)), (3, vec![1, 2, 3, 4]));
    }

    #[test]
    fn stop_tokens_end_a_response_and_are_part_of_it() {
        let mut slots = Slots::new(2);
        slots.submit(request(1, 1, 1));
        slots.submit(request(2, 1, 9));
        slots.enter(10);
        draw(&mut slots);
        let (finished, _) = slots.leave(&[5]);
        assert_eq!(finished.iter().map(|response| response.reason).collect::<Vec<_>>(), [FinishReason::Stop; 2]);
        assert_eq!(finished[0].tokens, [5]);
    }

    #[test]
    fn ids_are_unique_while_in_use_and_free_afterwards() {
        let mut slots = Slots::new(1);
        assert!(slots.submit(request(1, 1, 5)) && !slots.submit(request(1, 1, 5)) && slots.submit(request(2, 1, 5)));
        slots.enter(10);
        draw(&mut slots);
        assert_eq!(slots.cancel(1), (true, vec![]));
        assert_eq!((slots.cancel(2).0, slots.cancel(2).0), (true, false));
        assert!(slots.submit(request(1, 1, 5)) && slots.queued() == 1 && slots.rows().is_empty());
    }
}
