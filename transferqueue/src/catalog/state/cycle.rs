//! How far the schedule has come: admitted groups, those not cut yet, and the current cycle.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::definition::Schedule;
use crate::ids::{GroupId, PartitionId};

/// Progress of the trained partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) plan: Schedule,
    pub(crate) partition: PartitionId,
    /// Cycles of the run: the plan's, or fewer once it was shortened.
    pub(crate) cycles: u64,
    /// Groups ever admitted.
    pub(crate) admitted: u64,
    /// Groups that lost all their rows before their cycle ended.
    pub(crate) dropped: u64,
    /// Groups of the current cycle that lost all their rows after they were cut. They keep their place until the cycle
    /// ends and count as dropped then: were they made up for at once, more than ⌊S·B⌋ groups could be left over at the
    /// publication, and the lag that admission order promises would not hold.
    pub(crate) vacant: u64,
    /// Undropped groups of ended cycles.
    pub(crate) retired: u64,
    /// Cycles ended: the number of the current one.
    pub(crate) cycle: u64,
    /// Groups cut in the current cycle, dropped ones included.
    pub(crate) cut: u64,
    /// Batches cut in the current cycle.
    pub(crate) batches: u64,
    /// The current cycle's last batch is cut.
    pub(crate) whole: bool,
    /// Admitted, undropped, not cut; in admission order.
    pub(crate) uncut: BTreeSet<GroupId>,
    /// Of these the complete ones, in the order in which they became so.
    pub(crate) complete: BTreeMap<u64, GroupId>,
    pub(crate) completions: u64,
    /// Undropped groups of cycles that have not ended, by their admission version.
    pub(crate) needed: BTreeMap<u64, u64>,
}

impl Progress {
    pub(crate) fn new(plan: Schedule, partition: PartitionId) -> Self {
        Self {
            cycles: plan.total_cycles,
            plan,
            partition,
            admitted: 0,
            dropped: 0,
            vacant: 0,
            retired: 0,
            cycle: 0,
            cut: 0,
            batches: 0,
            whole: false,
            uncut: BTreeSet::new(),
            complete: BTreeMap::new(),
            completions: 0,
            needed: BTreeMap::new(),
        }
    }

    /// Groups that the schedule counts as in flight: admitted − dropped − retired.
    pub(crate) fn in_flight(&self) -> u64 {
        self.admitted - self.dropped - self.retired
    }

    /// B + ⌊S·B⌋.
    pub(crate) fn allowed(&self) -> u64 {
        self.plan.groups_per_cycle + self.plan.ahead
    }

    /// Groups that the rest of the run may still admit, whatever is in flight.
    pub(crate) fn remaining(&self) -> u64 {
        (self.cycles * self.plan.groups_per_cycle).saturating_sub(self.admitted - self.dropped)
    }

    /// A group no longer needs the weights of its admission.
    pub(crate) fn unneed(&mut self, version: u64) {
        if let Some(n) = self.needed.get_mut(&version) {
            *n -= 1;
            if *n == 0 {
                self.needed.remove(&version);
            }
        }
    }
}
