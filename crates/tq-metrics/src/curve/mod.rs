//! Curves of a run, as text and as SVG.

mod axis;
mod svg;
mod terminal;

pub use svg::svg;
pub use terminal::terminal;

/// One curve: a name and its points, x ascending. Points that are not finite are left out of the drawing.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
}

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The heading.
    pub title: String,
    /// What x is.
    pub x_label: String,
    /// The curves; they share both axes.
    pub series: Vec<Series>,
}

impl Chart {
    fn finite(&self) -> impl Iterator<Item = (f64, f64)> + Clone {
        self.series.iter().flat_map(|series| &series.points).copied().filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    /// Both axes, or `None` if there is no point.
    fn axes(&self, x_ticks: usize, y_ticks: usize) -> Option<(axis::Axis, axis::Axis)> {
        let x = axis::Axis::tight(self.finite().map(|(x, _)| x), x_ticks)?;
        let y = axis::Axis::rounded(self.finite().map(|(_, y)| y), y_ticks)?;
        Some((x, y))
    }
}
