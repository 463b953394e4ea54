//! Reading parquet in verl's layout: what is taken, what is refused, and in which words.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use tq_data::{
    Dataset, Error, Message, PromptOptions, PromptSet, ReadOptions, Record, Tokenizer, Truncation, digits,
    write_parquet,
};

fn record(text: &str, index: i64) -> Record {
    Record {
        prompt: vec![Message { role: "system".into(), content: "1".into() }, Message::user(text)],
        data_source: "digit_completion".into(),
        ability: "digits".into(),
        ground_truth: format!("{index}"),
        split: "train".into(),
        index,
    }
}

fn write_plain(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
    let file = std::fs::File::create(path).expect("creates");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("opens");
    writer.write(&batch).expect("writes");
    writer.close().expect("closes");
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

#[test]
fn several_files_are_read_in_order_up_to_the_limit() {
    let folder = tempfile::tempdir().expect("temp dir");
    let files: Vec<PathBuf> = ["a.parquet", "b.parquet"].iter().map(|name| folder.path().join(name)).collect();
    for (k, file) in files.iter().enumerate() {
        let rows: Vec<Record> = (0..3).map(|i| record(&format!("{k}{i}"), i)).collect();
        write_parquet(file, &rows).expect("writes");
    }
    let read = |limit| {
        let data = Dataset::read(&files, &ReadOptions { limit, ..ReadOptions::default() }).expect("reads");
        data.rows().iter().map(|row| row.messages[1].content.clone()).collect::<Vec<_>>()
    };
    assert_eq!(read(None), ["00", "01", "02", "10", "11", "12"]);
    assert_eq!(read(Some(4)), ["00", "01", "02", "10"]);
    assert_eq!(read(Some(3)), ["00", "01", "02"]);
    let data = Dataset::read(&files, &ReadOptions::default()).expect("reads");
    let last = &data.rows()[5];
    assert_eq!((last.number, &*last.file, last.extra_info["split"].as_str()), (2, files[1].as_path(), Some("train")));
    assert_eq!(last.messages[0].role, "system");
    assert_eq!(last.ability.as_deref(), Some("digits"));
}

#[test]
fn a_missing_column_is_named_together_with_those_found() {
    let folder = tempfile::tempdir().expect("temp dir");
    let file = folder.path().join("x.parquet");
    write_plain(&file, vec![("question", texts(&["1"])), ("data_source", texts(&["d"]))]);
    let error = Dataset::read(&[&file], &ReadOptions::default()).expect_err("no prompt").to_string();
    assert!(
        error.contains("no column `prompt`; found [\"question\", \"data_source\"]; set data.prompt_key"),
        "{error}"
    );
    let options = ReadOptions { prompt_key: "question".into(), ..ReadOptions::default() };
    let error = Dataset::read(&[&file], &options).expect_err("no answer").to_string();
    assert!(error.contains("no column `reward_model`"), "{error}");
    let data = Dataset::read(&[&file], &ReadOptions { require_ground_truth: false, ..options })
        .expect("a string is a message of the user");
    assert_eq!(data.rows()[0].messages, [Message::user("1")]);
    assert_eq!(data.rows()[0].ground_truth, "");
}

#[test]
fn a_prompt_of_the_wrong_type_is_refused_with_its_type() {
    let folder = tempfile::tempdir().expect("temp dir");
    let file = folder.path().join("x.parquet");
    write_plain(&file, vec![("prompt", Arc::new(Int64Array::from(vec![7]))), ("data_source", texts(&["d"]))]);
    let error = Dataset::read(&[&file], &ReadOptions { require_ground_truth: false, ..ReadOptions::default() })
        .expect_err("numbers")
        .to_string();
    assert!(
        error.contains("column `prompt` has type Int64; expected a list of {role, content}, or a string"),
        "{error}"
    );
}

#[test]
fn a_null_prompt_names_its_row() {
    let folder = tempfile::tempdir().expect("temp dir");
    let file = folder.path().join("x.parquet");
    write_plain(
        &file,
        vec![("prompt", Arc::new(StringArray::from(vec![Some("1"), None]))), ("data_source", texts(&["d", "d"]))],
    );
    let error = Dataset::read(&[&file], &ReadOptions { require_ground_truth: false, ..ReadOptions::default() })
        .expect_err("null")
        .to_string();
    assert!(error.ends_with("x.parquet: row 1: `prompt` is null"), "{error}");
}

#[test]
fn files_that_are_absent_or_not_parquet_are_named() {
    let folder = tempfile::tempdir().expect("temp dir");
    let file = folder.path().join("x.parquet");
    assert!(matches!(Dataset::read(&[&file], &ReadOptions::default()), Err(Error::Io { path, .. }) if path == file));
    std::fs::write(&file, "no parquet").expect("writes");
    assert!(
        matches!(Dataset::read(&[&file], &ReadOptions::default()), Err(Error::Parquet { path, .. }) if path == file)
    );
    assert!(matches!(Dataset::read::<&Path>(&[], &ReadOptions::default()), Err(Error::Empty(_))));
}

#[test]
fn long_prompts_are_refused_filtered_or_cut_as_asked() {
    let folder = tempfile::tempdir().expect("temp dir");
    let written = digits::write(folder.path(), &digits::Options::default()).expect("writes");
    let tokenizer = Tokenizer::load(&written.model).expect("loads");
    let file = folder.path().join("long.parquet");
    write_parquet(&file, &[record("234", 0), record("23456", 1)]).expect("writes");
    let data = Dataset::read(&[&file], &ReadOptions::default()).expect("reads");
    // Texts: `1234S` and `123456S`.
    let prepare = |filter_overlong, truncation| {
        PromptSet::prepare(&data, &tokenizer, &PromptOptions { max_length: 5, filter_overlong, truncation })
    };
    let error = prepare(false, Truncation::Error).expect_err("7 tokens").to_string();
    assert!(error.contains("row 1: the prompt has 7 tokens, more than max_prompt_length = 5"), "{error}");
    let kept = prepare(true, Truncation::Error).expect("one is left out");
    assert_eq!((kept.len(), kept.filtered(), kept.longest()), (1, 1, 5));
    for (truncation, text) in [(Truncation::Left, "3456S"), (Truncation::Right, "12345"), (Truncation::Middle, "1256S")]
    {
        let cut = prepare(false, truncation).expect("cut");
        assert_eq!(tokenizer.decode(&cut[1].ids, false).expect("decodes"), text);
    }
    let none = PromptSet::prepare(
        &data,
        &tokenizer,
        &PromptOptions { max_length: 2, filter_overlong: true, truncation: Truncation::Error },
    );
    assert!(matches!(none, Err(Error::Empty(_))));
}

#[test]
fn published_gsm8k_files_are_read() {
    let shared = std::env::var_os("TQ_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    let file = shared.join("data/gsm8k/verl/test.parquet");
    if !file.is_file() {
        println!("skipped: {} not found (set TQ_SHARED)", file.display());
        return;
    }
    let data = Dataset::read(&[file], &ReadOptions::default()).expect("reads");
    assert_eq!(data.len(), 1319);
    let first = &data.rows()[0];
    assert_eq!((first.data_source.as_str(), first.ground_truth.as_str()), ("openai/gsm8k", "18"));
    assert_eq!(first.extra_info["index"], 0);
}
