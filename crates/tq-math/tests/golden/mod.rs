//! Reading the recorded values and comparing with them.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]
#![allow(clippy::print_stdout, reason = "counts are what a reader of the test looks for")]

use std::path::PathBuf;

use serde_json::Value;
use tq_math::Layout;

/// The recorded file `name`, or `None` (said on stdout) if the folder is not there.
pub fn load(name: &str) -> Option<Value> {
    let folder = std::env::var_os("TQ_GOLDEN")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden"), PathBuf::from);
    let path = folder.join(name);
    let Ok(text) = std::fs::read(&path) else {
        println!("skipped: {} not found (set TQ_GOLDEN)", path.display());
        return None;
    };
    Some(serde_json::from_slice(&text).expect("recorded values are JSON"))
}

/// What was compared with one file.
pub struct Tally {
    file: &'static str,
    run: usize,
    skipped: Vec<String>,
    wrong: Vec<String>,
}

impl Tally {
    pub fn new(file: &'static str) -> Self {
        Tally { file, run: 0, skipped: Vec::new(), wrong: Vec::new() }
    }

    pub fn ran(&mut self) {
        self.run += 1;
    }

    pub fn skip(&mut self, why: impl Into<String>) {
        self.skipped.push(why.into());
    }

    pub fn wrong(&mut self, what: impl Into<String>) {
        self.wrong.push(what.into());
    }

    /// `ours` within `absolute + relative·|theirs|` of `theirs`.
    pub fn close(&mut self, case: &str, ours: f64, theirs: f64, absolute: f64, relative: f64) {
        let equal_nan = ours.is_nan() && theirs.is_nan();
        if !equal_nan
            && (ours - theirs)
                .abs()
                .partial_cmp(&(absolute + relative * theirs.abs()))
                .is_none_or(|order| order.is_gt())
        {
            self.wrong(format!("{case}: {ours} instead of {theirs}"));
        }
    }

    /// The same over the kept tokens of a layout.
    pub fn close_tokens(
        &mut self,
        case: &str,
        layout: &Layout,
        ours: &[f64],
        theirs: &[f64],
        absolute: f64,
        relative: f64,
    ) {
        for k in layout.all_kept() {
            self.close(&format!("{case}[{k}]"), ours[k], theirs[k], absolute, relative);
        }
    }

    /// Prints the count and fails if anything differed.
    pub fn finish(self) {
        let mut reasons: Vec<(String, usize)> = Vec::new();
        for why in &self.skipped {
            match reasons.iter_mut().find(|(known, _)| known == why) {
                Some((_, n)) => *n += 1,
                None => reasons.push((why.clone(), 1)),
            }
        }
        println!("{}: {} run, {} skipped", self.file, self.run, self.skipped.len());
        reasons.iter().for_each(|(why, n)| println!("  skipped {n}: {why}"));
        let shown: Vec<&String> = self.wrong.iter().take(40).collect();
        assert!(self.wrong.is_empty(), "{} values differ, the first of them:\n{shown:#?}", self.wrong.len());
        assert!(self.run > 0, "nothing was compared");
    }
}

/// A number, or one of the strings `NaN`, `Infinity`, `-Infinity`.
pub fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.trim_start_matches('+').parse().expect("NaN or an infinity"),
        other => other.as_f64().expect("a number"),
    }
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

/// Ragged rows as one flat column.
pub fn flat(value: &Value) -> Vec<f64> {
    value.as_array().expect("rows").iter().flat_map(numbers).collect()
}

pub fn flat_f32(value: &Value) -> Vec<f32> {
    flat(value).into_iter().map(|v| v as f32).collect()
}

pub fn layout(batch: &Value) -> Layout {
    let lengths: Vec<usize> = numbers(&batch["row_len"]).into_iter().map(|n| n as usize).collect();
    let mask = flat(&batch["mask"]).into_iter().map(|m| m != 0.0).collect();
    Layout::from_lengths(lengths).with_mask(mask).expect("one flag per token")
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {value}"))
}

pub fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is no list"))
}

pub fn batch<'a>(file: &'a Value, name: &str) -> &'a Value {
    list(file, "batches").iter().find(|batch| batch["name"] == name).unwrap_or_else(|| panic!("no batch {name}"))
}
