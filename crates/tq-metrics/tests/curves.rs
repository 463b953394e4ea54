//! What curves look like.

use tq_metrics::curve::{Chart, Series, svg, terminal};

fn chart() -> Chart {
    let rising = (0..=10).map(|step| (f64::from(step), 0.1 * f64::from(step))).collect();
    let flat = vec![(0.0, 0.5), (5.0, f64::NAN), (10.0, 0.5)];
    Chart {
        title: "held-out reward".into(),
        x_label: "step".into(),
        series: vec![
            Series { name: "trained".into(), points: rising },
            Series { name: "lr = 0 & <control>".into(), points: flat },
        ],
    }
}

#[test]
fn a_terminal_curve_has_axes_marks_and_a_legend() {
    let expected = [
        "     held-out reward",
        "1.0 ┤                               ●●",
        "    │                           ●●●●",
        "    │                        ●●●",
        "    │                    ●●●●",
        "0.5 ┤○○○○○○○○○○○○○○○○○○○○○○○○○○○○○○○○○",
        "    │             ●●●",
        "    │         ●●●●",
        "    │      ●●●",
        "    │  ●●●●",
        "0.0 ┤●●",
        "    └┬───────────────┬───────────────┬",
        "     0               5              10",
        "     ● trained   ○ lr = 0 & <control>    x: step",
    ];
    let drawn = terminal(&chart(), 33, 10);
    assert_eq!(drawn.lines().collect::<Vec<_>>(), expected, "{drawn}");
}

#[test]
fn an_svg_holds_each_curve_once_and_escapes_names() {
    let text = svg(&chart());
    assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"));
    assert_eq!(text.matches("<polyline").count(), 2);
    assert!(text.contains("lr = 0 &amp; &lt;control&gt;") && !text.contains("<control>"));
    assert!(!text.contains("NaN"), "points that are not finite are left out");
    assert!(text.contains("stroke-dasharray"), "curves differ by more than colour");
    // The first curve runs from the lower left to the upper right corner of the plotting area.
    assert!(
        text.contains(r#"<polyline points="64.0,364.0 "#) && text.contains(r#" 736.0,48.0" fill="none" stroke="#),
        "{text}"
    );
}

#[test]
fn nothing_to_draw_is_said() {
    let empty = Chart { series: vec![Series { name: "x".into(), points: vec![(1.0, f64::NAN)] }], ..chart() };
    assert_eq!(terminal(&empty, 40, 10), "held-out reward: no points\n");
    assert!(svg(&empty).contains("no points"));
}

#[test]
fn a_single_point_is_drawn() {
    let one = Chart { series: vec![Series { name: "x".into(), points: vec![(3.0, 0.7)] }], ..chart() };
    assert_eq!(terminal(&one, 40, 10).matches('●').count(), 2, "the point and its legend");
    assert!(svg(&one).contains("<circle"));
}
