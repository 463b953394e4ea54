//! One line a step.

use std::io::Write;

use super::Sink;
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// Writes `step:3 - actor/lr:0.0001 - critic/score/mean:0.512` and so on, one line a step, to any stream.
#[derive(Debug)]
pub struct Console<W> {
    out: W,
    only: Option<Vec<String>>,
}

impl<W: Write> Console<W> {
    /// Writes all numbers.
    pub fn new(out: W) -> Self {
        Console { out, only: None }
    }

    /// Writes the numbers whose names start with one of `prefixes`.
    pub fn only<S: Into<String>>(out: W, prefixes: impl IntoIterator<Item = S>) -> Self {
        Console { out, only: Some(prefixes.into_iter().map(Into::into).collect()) }
    }

    /// The stream.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write + Send> Sink for Console<W> {
    fn write(&mut self, step: u64, metrics: &Metrics) -> Result<()> {
        let mut line = format!("step:{step}");
        for (name, value) in metrics.iter() {
            if self.only.as_ref().is_none_or(|prefixes| prefixes.iter().any(|prefix| name.starts_with(prefix))) {
                line.push_str(&format!(" - {name}:{}", short(value)));
            }
        }
        line.push('\n');
        self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush()).map_err(Error::io("console"))
    }
}

/// Four significant digits, in plain or scientific notation, whichever is shorter to read.
fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        format!("{value}")
    } else if value.fract() == 0.0 && size < 1e9 {
        format!("{value:.0}")
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.3e}")
    } else {
        let digits = (3 - size.log10().floor() as i32).max(0) as usize;
        format!("{value:.digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_one_line_of_short_numbers() {
        let mut console = Console::new(Vec::new());
        let metrics = Metrics::from_iter([
            ("actor/lr", 1e-4),
            ("critic/score/mean", 0.512_345),
            ("perf/throughput", 12_345.678),
            ("x", f64::NAN),
            ("n", 40.0),
        ]);
        console.write(3, &metrics).expect("a vector takes everything");
        let text = String::from_utf8(console.into_inner()).expect("text");
        assert_eq!(
            text,
            "step:3 - actor/lr:1.000e-4 - critic/score/mean:0.5123 - perf/throughput:12346 - x:NaN - n:40\n"
        );
    }

    #[test]
    fn a_choice_of_prefixes_leaves_the_rest_out() {
        let mut console = Console::only(Vec::new(), ["lag/", "critic/score"]);
        let metrics = Metrics::from_iter([
            ("actor/lr", 1.0),
            ("lag/mean", 0.5),
            ("critic/score/mean", 0.25),
            ("critic/values/mean", 1.0),
        ]);
        console.write(1, &metrics).expect("a vector takes everything");
        assert_eq!(console.into_inner(), b"step:1 - lag/mean:0.5000 - critic/score/mean:0.2500\n");
    }
}
