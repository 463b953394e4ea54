//! Curves as text.

use super::{Chart, Series};
use crate::curve::axis::Axis;

/// One mark per curve: shapes, so that nothing depends on colour.
const MARKS: [char; 6] = ['●', '○', '▲', '△', '■', '□'];

/// Draws `chart` with a plotting area of `width` × `height` characters, axes and legend added around it.
///
/// Points are joined by straight lines. Of curves that meet in a character the later one is seen.
pub fn terminal(chart: &Chart, width: usize, height: usize) -> String {
    let (width, height) = (width.max(16), height.max(4));
    let Some((x, y)) = chart.axes((width / 12).max(1), (height / 3).max(1)) else {
        return format!("{}: no points\n", chart.title);
    };
    let mut cells = vec![vec![' '; width]; height];
    for (series, mark) in chart.series.iter().zip(MARKS.iter().cycle()) {
        for (column, row) in trace(series, &x, &y, width, height) {
            cells[row][column] = *mark;
        }
    }
    let label_of_row = |row: usize| {
        let label = y.labels().find(|value| row_of(y.place(*value), height) == row);
        label.map_or(String::new(), |value| y.text(value))
    };
    let margin = y.labels().map(|value| y.text(value).len()).max().unwrap_or(0);
    let mut text = format!("{:margin$}  {}\n", "", chart.title);
    for (row, line) in cells.iter().enumerate() {
        let label = label_of_row(row);
        let axis = if label.is_empty() { '│' } else { '┤' };
        let line: String = line.iter().collect();
        text.push_str(format!("{label:>margin$} {axis}{line}").trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{:margin$} └{}\n", "", rule(&x, width)));
    text.push_str(&format!("{:margin$}  {}\n", "", under(&x, width)));
    let legend: Vec<String> =
        chart.series.iter().zip(MARKS.iter().cycle()).map(|(series, mark)| format!("{mark} {}", series.name)).collect();
    text.push_str(&format!("{:margin$}  {}    x: {}\n", "", legend.join("   "), chart.x_label));
    text
}

/// The characters that a curve passes through.
fn trace(series: &Series, x: &Axis, y: &Axis, width: usize, height: usize) -> Vec<(usize, usize)> {
    let points: Vec<(f64, f64)> =
        series.points.iter().copied().filter(|(px, py)| px.is_finite() && py.is_finite()).collect();
    let mut cells: Vec<(usize, usize)> =
        points.iter().map(|(px, py)| (column_of(x.place(*px), width), row_of(y.place(*py), height))).collect();
    for pair in points.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
        for column in column_of(x.place(x0), width) + 1..column_of(x.place(x1), width) {
            let at = x.low + (column as f64 / (width - 1) as f64) * (x.high - x.low);
            let value = y0 + (y1 - y0) * ((at - x0) / (x1 - x0)).clamp(0.0, 1.0);
            cells.push((column, row_of(y.place(value), height)));
        }
    }
    cells
}

fn column_of(place: f64, width: usize) -> usize {
    (place * (width - 1) as f64).round() as usize
}

fn row_of(place: f64, height: usize) -> usize {
    height - 1 - (place * (height - 1) as f64).round() as usize
}

fn rule(x: &Axis, width: usize) -> String {
    let ticks: Vec<usize> = x.labels().map(|value| column_of(x.place(value), width)).collect();
    (0..width).map(|column| if ticks.contains(&column) { '┬' } else { '─' }).collect()
}

fn under(x: &Axis, width: usize) -> String {
    let mut line = String::new();
    for value in x.labels() {
        let label = x.text(value);
        let start = column_of(x.place(value), width).saturating_sub(label.len() / 2);
        if line.is_empty() || start > line.len() {
            line.push_str(&" ".repeat(start.saturating_sub(line.len())));
            line.push_str(&label);
        }
    }
    line
}
