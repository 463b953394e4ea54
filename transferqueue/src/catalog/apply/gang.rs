//! Ranks join, shares are cut and taken, gangs end.

use super::super::{
    bits::Bits,
    command::Totals,
    event::ShareCut,
    state::{State, Wake, gang::Cut},
};
use crate::ids::{LeaseId, Millis, Rows, SessionId, TaskId};

impl State {
    pub(super) fn gang_joined(&mut self, task: TaskId, rank: u32, session: SessionId) {
        let Some(gang) = &mut self.cursors[task.0 as usize].gang else { return };
        if let Some(seat) = gang.seats.get_mut(rank as usize) {
            *seat = Some(session);
            gang.unseated.remove(&session);
        }
        self.scratch.wakes.insert(Wake::Task(task));
    }

    pub(super) fn shares_cut(
        &mut self,
        task: TaskId,
        (cycle, index, last): (u64, u64, bool),
        shares: &[ShareCut],
        totals: &[Totals],
        at: Millis,
    ) {
        for share in shares.iter().filter(|share| share.lease != LeaseId(0)) {
            let rows: Rows = share.minis.iter().flat_map(Rows::iter).collect();
            self.leased(share.lease, task, share.session, &rows, at);
        }
        let Some(gang) = &mut self.cursors[task.0 as usize].gang else { return };
        if last {
            gang.closing = Some(cycle);
        }
        let taken = vec![false; shares.len()];
        gang.cut = Some(Cut { cycle, index, last, shares: shares.to_vec(), totals: totals.to_vec(), taken });
        self.scratch.wakes.insert(Wake::Task(task));
    }

    pub(super) fn share_taken(&mut self, task: TaskId, rank: u32) {
        let Some(gang) = &mut self.cursors[task.0 as usize].gang else { return };
        let Some(cut) = &mut gang.cut else { return };
        let Some(share) = cut.shares.get(rank as usize).map(|share| share.lease) else { return };
        cut.taken[rank as usize] = true;
        if cut.taken.iter().all(|taken| *taken) {
            gang.cut = None;
            self.scratch.wakes.insert(Wake::Task(task));
        }
        // Rows that were dropped meanwhile it never hears of, so it will not give them back.
        if let Some(lease) = self.leases.get_mut(&share) {
            lease.lost = Bits::default();
        }
        self.end_if_empty(share);
    }

    pub(super) fn gang_ended(&mut self, task: TaskId, why: &str) {
        let cursor = &mut self.cursors[task.0 as usize];
        let Some(gang) = &mut cursor.gang else { return };
        gang.end(why);
        let offered = cursor.training.is_some_and(|t| self.models[usize::from(t.model.0)].part.is_some());
        self.scratch.wakes.insert(Wake::Task(task));
        if !offered {
            self.untrain(task);
        }
    }
}
