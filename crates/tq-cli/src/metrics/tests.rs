use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
};

use transferqueue::{
    catalog::weights::{Publishing, WeightsView},
    inspect::Client,
};

use super::*;
use crate::tests::{Job, job};

fn page(job: &Job) -> String {
    exposition(&Views::get(&mut Client::connect(&job.folder().join("control.sock")).unwrap()).unwrap())
}

/// Names of families, from the lines that declare them.
fn families(page: &str) -> BTreeSet<String> {
    page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn the_page_says_what_the_tables_say() {
    let page = page(&job());
    for line in [
        "tq_rows{partition=\"jobs\"} 4",
        "tq_task_rows{task=\"score\",state=\"leased\"} 2",
        "tq_task_rows{task=\"collect\",state=\"ready\"} 2",
        "tq_task_consumed_total{task=\"score\"} 2",
        "tq_task_dropped_total{task=\"score\",reason=\"stale\"} 1",
        "tq_column_bytes{partition=\"jobs\",column=\"tokens\",state=\"live\"} 400",
        "tq_column_written_bytes_total{partition=\"jobs\",column=\"tokens\"} 800",
        "tq_sessions 1",
        "tq_poisoned 0",
        "# TYPE tq_task_consumed_total counter",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
}

#[test]
fn weights_are_counted_by_model_and_state() {
    let mut views = Views::get(&mut Client::connect(&job().folder().join("control.sock")).unwrap()).unwrap();
    let publishing = vec![Publishing { partition: "weights/policy/0.1".into(), bytes: 30, by: Some("actor-0".into()) }];
    let (model, versions) = ("policy".to_owned(), Vec::new());
    views.status.weights = vec![WeightsView { model, bytes: 130, state_bytes: 70, versions, publishing }];
    let page = exposition(&views);
    for line in [
        "tq_weights_bytes{model=\"policy\",state=\"live\"} 100",
        "tq_weights_bytes{model=\"policy\",state=\"publishing\"} 30",
        "tq_weights_bytes{model=\"policy\",state=\"trainer_state\"} 70",
        "tq_weight_versions{model=\"policy\"} 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
}

#[test]
fn every_line_is_of_the_format_and_every_sample_belongs_to_a_family() {
    let page = page(&job());
    let families = families(&page);
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (sample, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = sample.split('{').next().unwrap();
        assert!(families.contains(name), "{line}");
        assert!(seen.insert(sample), "{sample} is there twice");
    }
    for counter in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")) {
        assert!(counter.ends_with("_total"), "{counter}");
    }
    assert_eq!(labels(&[("task", "a\"b\\c\nd")]), r#"{task="a\"b\\c\nd"}"#);
    assert_eq!((family("weights/policy/0.12"), family("jobs")), ("weights/policy", "jobs"));
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let text = include_str!("../../../../docs/grafana.json");
    let board: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut used = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let names = expression
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .filter(|word| word.starts_with("tq_"));
            let before = used.len();
            used.extend(names.map(str::to_owned));
            assert!(used.len() > before || expression.contains("tq_"), "{expression} names no metric");
        }
    }
    // Families that only a run with a schedule or a budget has.
    let mut known = families(&page(&job()));
    known.extend(scheduled());
    let unknown: Vec<_> = used.difference(&known).collect();
    assert!(unknown.is_empty(), "docs/grafana.json uses metrics that do not exist: {unknown:?}");
    assert!(used.len() >= 10, "{used:?}");
}

/// Families of a page with a schedule and a budget.
fn scheduled() -> BTreeSet<String> {
    let job = job();
    let mut views = Views::get(&mut Client::connect(&job.folder().join("control.sock")).unwrap()).unwrap();
    views.status.schedule = Some(schedule());
    views.health.budget =
        Some(transferqueue::catalog::views::BudgetView { bytes: 9, used: 4, blocks: false, spilled: 0 });
    let page = exposition(&views);
    for line in ["tq_cycle 3", "tq_lag 1", "tq_groups{state=\"in_flight\"} 12", "tq_budget_used_bytes 4"] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    families(&page)
}

/// A schedule in its fourth cycle.
pub(crate) fn schedule() -> transferqueue::catalog::views::ScheduleView {
    transferqueue::catalog::views::ScheduleView {
        partition: "jobs".into(),
        cycle: 3,
        total_cycles: 10,
        version: 3,
        lineage: 0,
        admitted: 36,
        dropped: 0,
        retired: 24,
        in_flight: 12,
        allowed: 16,
        lag: 1,
        complete: 4,
        cut: 8,
        batches: vec![],
        over: false,
    }
}

#[test]
fn the_page_is_served_once_a_connection_and_nothing_else_is() {
    let job = job();
    let socket = job.folder().join("control.sock");
    let listener = listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let address = listener.local_addr().unwrap();
    let asked = [
        ("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        ("hello\r\n\r\n", "HTTP/1.1 405 "),
        ("GET /met", "HTTP/1.1 400 "),
    ];
    let server = std::thread::spawn(move || serve(&listener, &socket, Some(asked.len() as u64)));
    for (request, expected) in asked {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with(expected), "{request}: {reply}");
        assert_eq!(reply.contains("tq_rows{"), expected.contains("200"), "{reply}");
    }
    server.join().unwrap();
    let refused = listen("0.0.0.0:0".parse().unwrap(), false).unwrap_err().to_string();
    assert!(refused.contains("--insecure"), "{refused}");
}

#[test]
fn numbers_are_printed_once_without_an_address() {
    let job = job();
    let text = job.raw(&["metrics"]).unwrap().0;
    assert!(text.contains("# TYPE tq_rows gauge\ntq_rows{partition=\"jobs\"} 4\n"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&job.raw(&["metrics", "--format", "json"]).unwrap().0).unwrap();
    assert_eq!(json["tq_rows{partition=\"jobs\"}"], 4.0);
}
