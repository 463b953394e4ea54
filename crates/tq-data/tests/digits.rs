//! The digits task: its rules, its files, its tokenizer.

use std::collections::HashSet;
use std::path::PathBuf;

use tq_data::digits::{self, Options, Problem};
use tq_data::{Dataset, PromptOptions, PromptSet, ReadOptions, Tokenizer};

fn shared() -> PathBuf {
    std::env::var_os("TQ_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from)
}

#[test]
fn answers_continue_the_sequence_modulo_m() {
    for (prompt, answer) in [
        ("8,3:9,4", "7,2,6,1"),
        ("3,3:9,6", "3,3,3,3,3,3"),
        ("9,0:9,3", "0,0,0"),
        ("0,8:9,9", "7,6,5,4,3,2,1,0,8"),
        ("5,8:9,0", ""),
    ] {
        assert_eq!(prompt.parse::<Problem>().expect(prompt).answer(), answer, "{prompt}");
    }
}

#[test]
fn malformed_problems_are_refused_with_the_form() {
    for text in ["", "1,2", "1,2:9", "1:9,2", "a,2:9,1", "1,2:0,1", "1,2:9,1,1"] {
        let error = text.parse::<Problem>().expect_err(text).to_string();
        assert!(error.contains("expected `a,b:M,N`"), "{error}");
    }
}

#[test]
fn there_are_810_problems_and_the_held_out_ones_are_not_trained_on() {
    let all: HashSet<Problem> = Problem::all().into_iter().collect();
    assert_eq!(all.len(), 810);
    let (train, test) = digits::split(&Options::default()).expect("the default options are valid");
    assert_eq!((train.len(), test.len()), (650, 160));
    let union: HashSet<Problem> = train.iter().chain(&test).copied().collect();
    assert_eq!(union, all);
    let (_, other) = digits::split(&Options { seed: 2, ..Options::default() }).expect("valid");
    assert_ne!(test, other, "another seed holds out others");
    assert!(digits::split(&Options { held_out: 810, ..Options::default() }).is_err());
}

#[test]
fn equal_options_write_equal_bytes() {
    let (a, b) = (tempfile::tempdir().expect("temp dir"), tempfile::tempdir().expect("temp dir"));
    for folder in [&a, &b] {
        digits::write(folder.path(), &Options::default()).expect("written");
    }
    for name in [
        "train.parquet",
        "test.parquet",
        "model/config.json",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
        "model/generation_config.json",
    ] {
        let read = |folder: &tempfile::TempDir| std::fs::read(folder.path().join(name)).expect(name);
        assert_eq!(read(&a), read(&b), "{name}");
    }
}

#[test]
fn written_files_read_back_as_prompts_and_answers() {
    let folder = tempfile::tempdir().expect("temp dir");
    let written = digits::write(folder.path(), &Options::default()).expect("written");
    let tokenizer = Tokenizer::load(&written.model).expect("loads");
    assert_eq!((tokenizer.vocab_size(), tokenizer.eos_id(), tokenizer.pad_id()), (16, Some(1), Some(2)));
    for (file, rows) in [(&written.train, 650), (&written.test, 160)] {
        let data = Dataset::read(&[file], &ReadOptions::default()).expect("reads");
        assert_eq!(data.len(), rows);
        let prompts = PromptSet::prepare(&data, &tokenizer, &PromptOptions::default()).expect("tokenizes");
        for (prompt, row) in prompts.iter().zip(data.rows()) {
            let problem: Problem = row.messages[0].content.parse().expect("a problem");
            assert_eq!(prompt.ground_truth, problem.answer());
            assert_eq!(prompt.text, format!("{problem}S"));
            assert_eq!(prompt.ids.len(), prompt.text.len(), "a character is a token");
            assert_eq!(tokenizer.decode(&prompt.ids, false).expect("decodes"), prompt.text);
            assert_eq!(prompt.ids.last(), tokenizer.token_id("S").as_ref());
            assert_eq!(prompt.data_source, digits::DATA_SOURCE);
        }
    }
}

#[test]
fn pieces_tell_text_and_end_of_each_token() {
    let folder = tempfile::tempdir().expect("temp dir");
    let written = digits::write(folder.path(), &Options::default()).expect("written");
    let tokenizer = Tokenizer::load(&written.model).expect("loads");
    let pieces = tokenizer.pieces(&[9, 14, 1]).expect("known ids");
    let told: Vec<_> = pieces.iter().map(|p| (p.text.as_str(), p.end)).collect();
    assert_eq!(told, [("5", false), (",", false), ("E", true)]);
    let error = tokenizer.pieces(&[16]).expect_err("16 symbols").to_string();
    assert!(error.contains("id 16 is not in the vocabulary of 16 tokens"), "{error}");
    assert!(tokenizer.decode(&[-1], true).is_err());
}

#[test]
fn prompts_are_those_of_the_published_task() {
    let folder = shared().join("data/digits");
    if !folder.is_dir() {
        println!("skipped: {} not found (set TQ_SHARED)", folder.display());
        return;
    }
    let options = ReadOptions {
        default_data_source: Some(digits::DATA_SOURCE.into()),
        require_ground_truth: false,
        ..ReadOptions::default()
    };
    let files = [folder.join("train.parquet"), folder.join("test.parquet")];
    let data = Dataset::read(&files, &options).expect("the published files read");
    assert_eq!(data.len(), 1000);
    let ours: HashSet<String> = Problem::all().iter().map(Problem::to_string).collect();
    let theirs: HashSet<String> = data.rows().iter().map(|row| row.messages[0].content.clone()).collect();
    assert!(ours.is_subset(&theirs), "every prompt of ours is one of theirs");
    let extra: Vec<_> = theirs.difference(&ours).collect();
    assert!(extra.iter().all(|prompt| prompt.ends_with(",0")), "theirs also ask for no number at all: {extra:?}");
}

#[test]
fn our_tokenizer_agrees_with_the_published_one() {
    let folder = shared().join("data/digits/model");
    if !folder.is_dir() {
        println!("skipped: {} not found (set TQ_SHARED)", folder.display());
        return;
    }
    let ours = tempfile::tempdir().expect("temp dir");
    let ours =
        Tokenizer::load(&digits::write(ours.path(), &Options::default()).expect("written").model).expect("loads");
    let theirs = Tokenizer::load(&folder).expect("loads");
    for text in ["8,3:9,4", "1 2\n3", "SEPU09,:", "naïve ½ 😀", ""] {
        assert_eq!(ours.encode(text).expect("encodes"), theirs.encode(text).expect("encodes"), "{text:?}");
    }
    let turn = [tq_data::Message::user("8,3:9,4")];
    assert_eq!(ours.prompt_text(&turn).expect("renders"), theirs.prompt_text(&turn).expect("renders"));
}
