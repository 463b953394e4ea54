//! What follows by itself, worked out from scratch.

use super::{AHEAD, B, COLUMNS, COPY, Cell, For, Group, LONG, Model, NOTE, NOTED, OUT, READS, Row, TASKS};

impl Model {
    /// Everything that follows, from scratch, until nothing changes.
    pub fn settle(&mut self) {
        loop {
            let before = format!("{self:?}");
            self.rows.iter_mut().for_each(settle_row);
            self.settle_groups();
            self.admit();
            self.cut_batches();
            if before == format!("{self:?}") {
                return;
            }
        }
    }

    fn settle_groups(&mut self) {
        for (group, rows) in self.groups.iter_mut().zip(self.rows.chunks(2)) {
            if !rows.iter().any(Row::active) {
                self.prompts[group.prompt as usize] = false;
            }
            if !group.gone && !rows.iter().any(Row::present) {
                group.gone = true;
                match (group.retired, group.cut) {
                    (true, _) => {}
                    (false, Some(_)) => self.vacant += 1,
                    (false, None) => self.dropped += 1,
                }
            }
        }
    }

    fn exhausted(&self) -> bool {
        self.closed && self.next_prompt == self.prompts.len() || self.admitted - self.dropped >= self.cycles * B
    }

    fn admit(&mut self) {
        while self.cycle < self.cycles
            && !self.samples_closed
            && self.admitted - self.dropped - self.retired < B + AHEAD
            && self.admitted - self.dropped < self.cycles * B
            && self.next_prompt < self.prompts.len()
        {
            let (prompt, version) = (self.next_prompt as u64, self.cycle);
            self.next_prompt += 1;
            self.admitted += 1;
            self.groups.push(Group { prompt, version, cut: None, retired: false, gone: false });
            let waiting = For::Waiting;
            let tasks = [For::Ready, waiting, For::Undecided, waiting, waiting, waiting];
            let (cells, uses) = ([Cell::Absent; COLUMNS], [0; TASKS]);
            let row = Row { tasks, cells, long: false, uses, attempts: 0, dropped: false };
            self.rows.extend([row.clone(), row]);
        }
        if self.over() || self.closed && self.next_prompt == self.prompts.len() {
            self.samples_closed = true;
        }
        if self.over() {
            // Nothing will be expanded any more, and what was admitted too much goes.
            self.closed = true;
            self.prompts[self.next_prompt..].iter_mut().for_each(|present| *present = false);
            let uncut = |(_, group): &(usize, &Group)| group.cut.is_none() && !group.gone;
            let surplus: Vec<u64> = self.groups.iter().enumerate().filter(uncut).map(|(i, _)| 2 * i as u64).collect();
            for first in surplus {
                self.mark_dropped(&[first, first + 1], "surplus");
            }
        }
    }

    fn cut_batches(&mut self) {
        let next: Vec<usize> = (0..self.groups.len())
            .filter(|group| self.groups[*group].cut.is_none() && !self.groups[*group].gone)
            .take(B as usize)
            .collect();
        let complete = |group: &usize| {
            let rows = &self.rows[2 * group..2 * group + 2];
            rows.iter().filter(|row| row.present()).all(|row| row.cells[OUT].sealed() && row.cells[1].sealed())
        };
        let enough = next.len() as u64 == B || self.exhausted() && !next.is_empty();
        if self.cut || self.cycle >= self.cycles || !enough || !next.iter().all(complete) {
            return;
        }
        self.cut = true;
        for (index, group) in (0..).zip(next) {
            self.groups[group].cut = Some((self.cycle, index));
        }
    }
}

fn settle_row(row: &mut Row) {
    if row.dropped {
        row.cells.iter_mut().for_each(|cell| *cell = if cell.sealed() { Cell::Gone } else { Cell::Absent });
        return;
    }
    if row.tasks[LONG] == For::Undecided && row.cells[OUT].sealed() {
        row.tasks[LONG] = if row.long { For::Waiting } else { For::NotOwed };
    }
    if row.tasks[LONG] == For::NotOwed && row.cells[NOTE] == Cell::Absent {
        row.cells[NOTE] = Cell::Never;
        if row.tasks[NOTED].active() {
            row.tasks[NOTED] = For::Dropped("unproduced");
        }
    }
    for (task, reads) in READS.iter().enumerate() {
        if row.tasks[task] == For::Waiting && reads.iter().all(|column| row.cells[*column].sealed()) {
            row.tasks[task] = For::Ready;
        }
    }
    let active = row.active();
    for column in 0..COLUMNS {
        let mut readers = (0..TASKS).filter(|task| READS[*task].contains(&column));
        let wanted = readers.any(|task| row.tasks[task].active());
        if column != COPY && !wanted && matches!(row.cells[column], Cell::Held(_)) {
            row.cells[column] = Cell::Gone;
        }
    }
    if !active {
        row.cells.iter_mut().for_each(|cell| {
            if let Cell::Open(_) = cell {
                *cell = Cell::Absent;
            }
        });
    }
}
