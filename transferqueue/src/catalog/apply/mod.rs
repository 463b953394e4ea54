//! Events change the state; nothing else does. `apply` cannot fail and decides nothing: an event carries every choice.

mod birth;
mod cells;
mod gang;
mod leases;
mod publish;
mod save;
mod scope;
mod spill;

use super::{
    event::Event,
    state::{Poisoned, State, Wake},
};
use crate::ids::{ChunkId, PartitionId};

/// Applies one event. Events must come from `decide` on an equal state (or from a record of it).
pub fn apply(state: &mut State, event: &Event) {
    match event {
        Event::Defined { .. } => {}
        Event::Restored { lineage } => state.restored(*lineage),
        Event::SessionOpened { session, name, at, here } => state.session_opened(*session, name, *at, *here),
        Event::SessionSeen { session, at } => {
            if let Some(session) = state.sessions.get_mut(session) {
                session.seen = *at;
            }
        }
        Event::SessionEnded { session, .. } => state.session_ended(*session),
        Event::PartitionCreated { id, partition, owner } => state.partition_created(*id, partition, *owner),
        Event::PartitionClosed { partition } => state.partition_closed(*partition),
        Event::PartitionDeleted { partition } => state.partition_deleted(*partition),
        Event::RowsPut { partition, first, rows, cells } => state.rows_put(*partition, *first, rows, cells),
        Event::GroupsAdmitted { partition, groups, round } => state.groups_admitted(*partition, groups, *round),
        Event::Leased { lease, task, session, rows, at } => state.leased(*lease, *task, *session, rows, *at),
        Event::GangJoined { task, rank, session } => state.gang_joined(*task, *rank, *session),
        Event::SharesCut { task, cycle, index, last, shares, totals, at } => {
            state.shares_cut(*task, (*cycle, *index, *last), shares, totals, *at);
        }
        Event::ShareTaken { task, rank } => state.share_taken(*task, *rank),
        Event::GangEnded { task, why } => state.gang_ended(*task, why),
        Event::LeaseRenewed { lease, progress, at } => state.lease_renewed(*lease, *progress, *at),
        Event::CellsWritten { partition, cells, notes, .. } => {
            // Sealed cells give back what was reserved for them.
            state.scratch.schedule |= state.definition.budget.is_some();
            if let Some(mut scope) = state.scope(*partition) {
                scope.note(notes);
                cells.iter().for_each(|write| scope.write(write));
            }
        }
        Event::RowsSaved { lease, task, cells, rows } => state.rows_saved(*lease, *task, cells, rows),
        Event::SavedForgotten { partition, rows } => {
            if let Some(mut scope) = state.scope(*partition) {
                rows.iter().for_each(|row| scope.forget_saved(row));
            }
        }
        Event::RowsCommitted { lease, task, rows, lost } => state.rows_committed(*lease, *task, rows, lost),
        Event::RowsReturned { lease, task, rows, lost, why } => state.rows_returned(*lease, *task, rows, lost, why),
        Event::RowsDropped { partition, drop } => state.rows_dropped(*partition, drop),
        Event::Poisoned { task, row, error } => {
            state.poisoned = Some(Poisoned { task: *task, row: *row, error: error.clone() });
            state.scratch.wakes.insert(Wake::Stopped);
        }
        Event::BatchCut { partition, cycle, index, groups, last } => {
            state.batch_cut(*partition, (*cycle, *index), groups, *last);
        }
        Event::PartOffered { model, weights, state: trainer, .. } => state.part_offered(*model, *weights, *trainer),
        Event::CyclePublished { cycle, version, lineage, models } => {
            state.cycle_published(*cycle, *version, *lineage, models);
        }
        Event::ScheduleShortened { cycles } => {
            state.scratch.schedule = true;
            if let Some(progress) = &mut state.progress {
                progress.cycles = *cycles;
            }
        }
        Event::VersionPinned { session, model, version } => state.version_pinned(*session, *model, *version),
        Event::VersionUnpinned { session, model, version } => state.version_unpinned(*session, *model, *version),
        Event::VersionRetired { model, version } => {
            state.models[usize::from(model.0)].live.remove(version);
        }
        Event::ChunksFreed { partition, chunks, .. } => state.chunks_freed(*partition, chunks),
        Event::ChunksSpilled { partition, file, chunks } => state.chunks_spilled(*partition, *file, chunks),
        Event::ClockJumped { to } => state.clock_jumped(*to),
    }
    state.release_parents();
}

impl State {
    /// Rows of a parent that a child needs no longer.
    fn release_parents(&mut self) {
        for (partition, row) in std::mem::take(&mut self.scratch.released) {
            let Some(mut scope) = self.scope(partition) else { continue };
            if let Some(found) = scope.table.pages.get_mut(row) {
                found.holds -= 1;
                scope.lapse(row);
            }
        }
    }

    fn chunks_freed(&mut self, partition: PartitionId, chunks: &[ChunkId]) {
        self.scratch.gone.retain(|(id, _, _)| *id != partition);
        let Some(table) = self.tables.get_mut(&partition) else { return };
        for id in chunks {
            let Some(chunk) = table.chunks.remove(id) else { continue };
            table.forget_spilled(*id, &chunk);
            let field = &mut table.fields[usize::from(chunk.column)];
            field.dead -= chunk.bytes;
            field.freed += chunk.bytes;
        }
    }
}
