//! Curves as a picture.

use std::fmt::Write;

use super::Chart;
use crate::curve::axis::Axis;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;

/// Colours that stay apart for colour-blind eyes (Okabe & Ito 2008), each with a dash pattern of its own.
const STYLES: [(&str, &str); 6] = [
    ("#0072b2", ""),
    ("#d55e00", "8 4"),
    ("#009e73", "2 3"),
    ("#cc79a7", "10 3 2 3"),
    ("#e69f00", "5 2"),
    ("#56b4e9", "1 2"),
];

/// Draws `chart` as a self-contained SVG of 760 × 420 with grid, axes and legend. Equal charts give equal text.
pub fn svg(chart: &Chart) -> String {
    let mut out = String::new();
    write_svg(chart, &mut out).expect("writing to a string does not fail");
    out
}

fn write_svg(chart: &Chart, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="13">"#
    )?;
    writeln!(out, r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##)?;
    writeln!(
        out,
        r##"<text x="{LEFT}" y="24" font-size="16" font-weight="600" fill="#222222">{}</text>"##,
        escape(&chart.title)
    )?;
    match chart.axes(8, 6) {
        Some((x, y)) => {
            write_grid(&x, &y, &chart.x_label, out)?;
            write_curves(chart, &x, &y, out)?;
            write_legend(chart, out)?;
        }
        None => writeln!(out, r##"<text x="{LEFT}" y="{}" fill="#666666">no points</text>"##, HEIGHT / 2.0)?,
    }
    writeln!(out, "</svg>")
}

fn across(x: &Axis, value: f64) -> f64 {
    LEFT + x.place(value) * (WIDTH - LEFT - RIGHT)
}

fn down(y: &Axis, value: f64) -> f64 {
    HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM)
}

fn write_grid(x: &Axis, y: &Axis, x_label: &str, out: &mut String) -> std::fmt::Result {
    let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for value in y.labels() {
        let at = down(y, value);
        writeln!(out, r##"<line x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}" stroke="#e2e2e2"/>"##)?;
        writeln!(
            out,
            r##"<text x="{:.1}" y="{:.1}" text-anchor="end" fill="#444444">{}</text>"##,
            LEFT - 8.0,
            at + 4.0,
            y.text(value)
        )?;
    }
    for value in x.labels() {
        let at = across(x, value);
        writeln!(out, r##"<line x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{floor}" stroke="#f0f0f0"/>"##)?;
        writeln!(
            out,
            r##"<text x="{at:.1}" y="{:.1}" text-anchor="middle" fill="#444444">{}</text>"##,
            floor + 18.0,
            x.text(value)
        )?;
    }
    writeln!(out, r##"<path d="M{LEFT} {TOP}V{floor}H{right}" fill="none" stroke="#444444"/>"##)?;
    let middle = (LEFT + right) / 2.0;
    writeln!(
        out,
        r##"<text x="{middle:.1}" y="{:.1}" text-anchor="middle" fill="#444444">{}</text>"##,
        HEIGHT - 14.0,
        escape(x_label)
    )
}

fn write_curves(chart: &Chart, x: &Axis, y: &Axis, out: &mut String) -> std::fmt::Result {
    for (series, (colour, dash)) in chart.series.iter().zip(STYLES.iter().cycle()) {
        let points: Vec<String> = series
            .points
            .iter()
            .filter(|(px, py)| px.is_finite() && py.is_finite())
            .map(|(px, py)| format!("{:.1},{:.1}", across(x, *px), down(y, *py)))
            .collect();
        match points.as_slice() {
            [] => {}
            [alone] => {
                let (cx, cy) = alone.split_once(',').unwrap_or((alone, "0"));
                writeln!(out, r##"<circle cx="{cx}" cy="{cy}" r="3" fill="{colour}"/>"##)?;
            }
            _ => {
                let dash = if dash.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dash}""#) };
                let points = points.join(" ");
                writeln!(
                    out,
                    r##"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"{dash}/>"##
                )?;
            }
        }
    }
    Ok(())
}

fn write_legend(chart: &Chart, out: &mut String) -> std::fmt::Result {
    // About 7 units a character at this font size.
    let mut at = LEFT;
    for (series, (colour, dash)) in chart.series.iter().zip(STYLES.iter().cycle()) {
        let dash = if dash.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dash}""#) };
        writeln!(
            out,
            r##"<line x1="{at:.1}" y1="37" x2="{:.1}" y2="37" stroke="{colour}" stroke-width="2"{dash}/>"##,
            at + 24.0
        )?;
        writeln!(out, r##"<text x="{:.1}" y="41" fill="#222222">{}</text>"##, at + 30.0, escape(&series.name))?;
        at += 30.0 + 7.0 * series.name.chars().count() as f64 + 22.0;
    }
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
