//! The data plane beside the machine's limits: what it costs to put bytes where they are to lie.
//!
//! A put of one dense column of 64 KiB to 256 MiB through `local` into shared memory, which copies it once into pages that
//! are there already, beside `memcpy` between warm buffers. Each is repeated until 512 MiB have passed, five times in turns
//! behind a turn that brings the pages; medians are compared. Every byte is summed within the timed part, on both sides.

use std::{hint::black_box, process::ExitCode, sync::Arc};

use arrow::array::{Array, ArrayRef, UInt64Array};
use tq_benches::{GIB, Report, Row, median, sum, timed};
use transferqueue::{
    ColumnId, Dtype, Kind, PartitionId,
    catalog::command::{CellRun, ColumnRef},
    schema::Column,
    transport::{Local, Purpose, Target, Transport},
    unit::{Unit, Units},
};

const ROUNDS: usize = 5;
const EACH: usize = 512 << 20;

/// Puts an array, reads what lies there to its last byte, and lets it go.
fn put(local: &Local, column: &Column, array: &ArrayRef) -> u64 {
    let (partition, id) = (PartitionId(0), ColumnId(0));
    let placed =
        local.put(Target { partition, id, column, purpose: Purpose::Final }, array.clone()).expect("there is room");
    let run = CellRun { chunk: placed.chunk, generation: 0, slot: placed.slot, len: array.len() as u32 };
    let pointer = ColumnRef { name: column.name.clone(), partition, column: id, runs: vec![run] };
    let views = local.get(&pointer).expect("it lies there");
    views.iter().map(|view| sum(view.array().to_data().buffers()[0].typed_data())).fold(0, u64::wrapping_add)
}

fn main() -> ExitCode {
    let mut report = Report::new("plane");
    let column = Column::new("x", Kind::Dense { dtype: Dtype::U64, shape: vec![] });
    for shift in [16, 20, 23, 26, 28] {
        let bytes = 1_usize << shift;
        let source: Vec<u64> = (0..bytes as u64 / 8).collect();
        let array: ArrayRef = Arc::new(UInt64Array::from(source.clone()));
        let mut target = vec![0_u64; source.len()];
        let shared = Local::new(Units::from(Unit::in_shared_memory(64 << 20, 1 << 20, 0)));
        let times = (EACH / bytes).max(1);
        let (mut puts, mut copies) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let copied = timed(times, || {
                target.copy_from_slice(black_box(&source));
                sum(&target)
            });
            let put = timed(times, || put(&shared, &column, &array));
            if round > 0 {
                copies.push(copied);
                puts.push(put);
            }
        }
        let speed = |seconds: f64| (times * bytes) as f64 / GIB / seconds;
        let (ours, theirs) = (speed(median(puts)), speed(median(copies)));
        let budget = (bytes >= 64 << 20).then_some(0.9);
        let case = format!("put and read, shared memory, {} KiB", bytes >> 10);
        report.push(Row::speeds(case, ours, ("memcpy and read", theirs), budget));
    }
    report.conclude()
}
