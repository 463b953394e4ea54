//! Ranges and round numbers.

/// An axis from `low` to `high` with labelled places.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    /// Distance of two labels: 1, 2 or 5 times a power of ten.
    pub(super) step: f64,
}

impl Axis {
    /// From the smallest to the largest value.
    pub(super) fn tight(values: impl Iterator<Item = f64>, labels: usize) -> Option<Axis> {
        let (mut low, mut high) = values.fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        })?;
        if low == high {
            // A single value sits in the middle of a range of its own size.
            let half = if low == 0.0 { 0.5 } else { low.abs() / 2.0 };
            (low, high) = (low - half, high + half);
        }
        let rough = (high - low) / labels as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|m| m * power)
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(10.0 * power);
        Some(Axis { low, high, step })
    }

    /// Widened to the next labels on both sides.
    pub(super) fn rounded(values: impl Iterator<Item = f64>, labels: usize) -> Option<Axis> {
        let tight = Axis::tight(values, labels)?;
        let low = (tight.low / tight.step + 1e-9).floor() * tight.step;
        let high = (tight.high / tight.step - 1e-9).ceil() * tight.step;
        Some(Axis { low, high, ..tight })
    }

    /// The labelled values, ascending.
    pub(super) fn labels(&self) -> impl Iterator<Item = f64> {
        let first = (self.low / self.step - 1e-9).ceil() as i64;
        let last = (self.high / self.step + 1e-9).floor() as i64;
        let step = self.step;
        (first..=last).map(move |k| k as f64 * step)
    }

    /// Where a value lies, 0 at `low` and 1 at `high`.
    pub(super) fn place(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// A label with as many digits as tell it from its neighbours.
    pub(super) fn text(&self, value: f64) -> String {
        if self.step >= 1e7 || self.step < 1e-6 {
            return format!("{value:.1e}");
        }
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        let value = if value.abs() < self.step / 2.0 { 0.0 } else { value };
        format!("{value:.digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64]) -> Vec<String> {
        let axis = Axis::rounded(values.iter().copied(), 5).expect("there are values");
        axis.labels().map(|label| axis.text(label)).collect()
    }

    #[test]
    fn labels_are_round_and_enclose_the_values() {
        assert_eq!(labels(&[0.13, 0.81]), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[3.0, 47.0]), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(labels(&[-0.02, 0.05]), ["-0.02", "0.00", "0.02", "0.04", "0.06"]);
    }

    #[test]
    fn a_single_value_has_a_range_around_it() {
        let axis = Axis::rounded([0.5].into_iter(), 4).expect("a value");
        assert!(axis.low < 0.5 && axis.high > 0.5);
        let zero = Axis::rounded([0.0, 0.0].into_iter(), 4).expect("values");
        assert!(zero.low < 0.0 && zero.high > 0.0);
        assert_eq!(Axis::tight(std::iter::empty(), 4), None);
    }
}
