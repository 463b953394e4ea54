use std::sync::Arc;

use arrow::array::Array;

use super::*;
use crate::{schema::Dtype, transport::View};

fn columns() -> [Column; 3] {
    [
        Column::new("tokens", Kind::Ragged { dtype: Dtype::I32, inner: vec![] }),
        Column::new("reward", Kind::Dense { dtype: Dtype::F32, shape: vec![2] }),
        Column::new("text", Kind::Utf8),
    ]
}

/// Rows `from..to`; row `i` holds `i` tokens counting from `i`.
fn one_piece(from: u64, to: u64) -> Batch {
    let outputs = Outputs::new()
        .ragged::<i32>("tokens", (from..to).map(|i| (i as i32..2 * i as i32).collect::<Vec<_>>()))
        .dense::<f32>("reward", (from..to).flat_map(|i| [i as f32, -(i as f32)]).collect::<Vec<_>>())
        .utf8("text", (from..to).map(|i| format!("row {i}")));
    Batch::detached(&columns(), to - from, outputs).unwrap()
}

/// The same rows from many chunks.
fn pieces(bounds: &[u64]) -> Batch {
    let parts: Vec<Batch> = bounds.windows(2).map(|w| one_piece(w[0], w[1])).collect();
    let heads = one_piece(0, bounds[bounds.len() - 1]).heads;
    let joined = |i: usize| -> (Arc<Column>, Vec<View>) {
        (Arc::new(columns()[i].clone()), parts.iter().flat_map(|p| p.columns[i].views().to_vec()).collect())
    };
    Batch::new(heads, (0..3).map(joined).collect()).unwrap()
}

fn check(batch: &Batch, from: usize) {
    let (tokens, reward, text) =
        (batch.ragged::<i32>("tokens").unwrap(), batch.dense::<f32>("reward").unwrap(), batch.utf8("text").unwrap());
    for row in 0..batch.len() {
        let i = from + row;
        assert_eq!(tokens.row(row), (i as i32..2 * i as i32).collect::<Vec<_>>());
        assert_eq!(reward.row(row), [i as f32, -(i as f32)]);
        assert_eq!(text.row(row), format!("row {i}"));
    }
    assert_eq!(tokens.lens(), (from..from + batch.len()).collect::<Vec<_>>());
    assert_eq!(tokens.total(), tokens.lens().iter().sum::<usize>());
    assert_eq!(reward.to_vec().len(), 2 * batch.len());
}

#[test]
fn rows_are_found_across_chunks() {
    check(&pieces(&[0, 1, 5, 6, 20]), 0);
}

#[test]
fn selecting_and_splitting_point_at_the_same_bytes() {
    let batch = pieces(&[0, 1, 5, 6, 20]);
    let minis = batch.split(&[4, 0, 13, 3]).unwrap();
    for (mini, from) in minis.iter().zip([0, 4, 4, 17]) {
        check(mini, from);
    }
    check(&minis[2].select(5..9), 9);
    assert_eq!(minis[2].rows().to_string(), "4-16");
    assert_eq!(minis[2].heads()[0].row, RowId(4));
    let address = |batch: &Batch, row| batch.ragged::<i32>("tokens").unwrap().row(row).as_ptr();
    assert_eq!(address(&batch, 10), address(&minis[2], 6));
    let wrong = batch.split(&[4, 4]).unwrap_err().to_string();
    assert_eq!(wrong, "sizes [4, 4] add up to 8, the batch has 20 rows");
}

#[test]
fn gather_copies_into_one_array_a_column() {
    let gathered = pieces(&[0, 1, 5, 6, 20]).select(3..18).gather().unwrap();
    let expected = one_piece(0, 20).select(3..18).gather().unwrap();
    assert_eq!(gathered, expected);
    assert_eq!((gathered.num_rows(), gathered.num_columns()), (15, 3));
    let offsets = arrow_map::leaf_bytes(gathered.column(0)).unwrap();
    assert_eq!(offsets.len(), (3..18).sum::<usize>() * 4);
    assert_eq!(gathered.column(1).null_count(), 0);
}

#[test]
fn a_wrong_question_names_the_column_what_it_is_and_how_to_ask() {
    let batch = one_piece(0, 3);
    let error = |result: Result<(), BatchError>| result.unwrap_err().to_string();
    assert_eq!(
        error(batch.ragged::<f32>("tokens").map(drop)),
        "column `tokens` is ragged i32, asked for as ragged f32; read it with `ragged::<i32>`"
    );
    assert_eq!(
        error(batch.binary("text").map(drop)),
        "column `text` is utf8, asked for as binary; read it with `utf8`"
    );
    assert_eq!(
        error(batch.utf8("txet").map(drop)),
        "the batch has no column `txet`; it has `tokens`, `reward`, `text`"
    );
}

#[test]
fn an_empty_batch_is_read_like_any_other() {
    let batch = one_piece(0, 0);
    assert!(batch.is_empty() && batch.ragged::<i32>("tokens").unwrap().is_empty());
    assert_eq!(batch.gather().unwrap().num_rows(), 0);
    let nothing = Batch::new(Arc::new(vec![]), vec![(Arc::new(columns()[0].clone()), vec![])]).unwrap();
    assert_eq!(nothing.ragged::<i32>("tokens").unwrap().lens(), Vec::<usize>::new());
}

#[test]
fn a_transport_that_loses_cells_is_found_out() {
    let batch = one_piece(0, 4);
    let views = batch.columns[0].select(0..3).views().to_vec();
    let error = Batch::new(batch.heads, vec![(Arc::new(columns()[0].clone()), views)]).unwrap_err();
    assert_eq!(error.to_string(), "column `tokens` has 3 cells for 4 rows: the transport lost or repeated some");
}

#[test]
fn columns_are_read_under_other_names_from_the_same_bytes() {
    let batch = one_piece(0, 4);
    let renamed = batch.renamed([("tokens", "responses"), ("reward", "score"), ("reward", "baseline")]).unwrap();
    assert_eq!(renamed.columns().collect::<Vec<_>>(), ["responses", "score", "baseline"]);
    let address = |batch: &Batch, name: &str| batch.ragged::<i32>(name).unwrap().row(3).as_ptr();
    assert_eq!(address(&renamed, "responses"), address(&batch, "tokens"));
    assert_eq!(renamed.select(1..3).dense::<f32>("baseline").unwrap().row(1), [2.0, -2.0]);
    assert!(batch.renamed([("text", "a"), ("txt", "b")]).unwrap_err().to_string().contains("no column `txt`"));
}
