//! Length balancing and packing against recorded lists.

mod golden;

use golden::{Tally, list, load, number, numbers};
use serde_json::Value;
use tq_math::balance::{Packing, greedy, inverse, micro_batches, partitions, workload};

fn lists(value: &Value) -> Vec<Vec<usize>> {
    value.as_array().expect("lists").iter().map(indices).collect()
}

fn indices(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|n| n as usize).collect()
}

#[test]
fn partitions_and_micro_batches_equal_the_recorded_lists() {
    let Some(file) = load("seqlen_balance.json") else {
        return;
    };
    let mut tally = Tally::new("seqlen_balance.json");
    for (nth, case) in list(&file, "partitions").iter().enumerate() {
        let lengths = indices(&case["seqlens"]);
        let costs: Vec<u64> = lengths
            .iter()
            .map(|length| if case["use_workload"] == true { workload(*length) } else { *length as u64 })
            .collect();
        let (parts, equal_size) = (number(&case["k"]) as usize, case["equal_size"] == true);
        tally.ran();
        if let Some(theirs) = case.get("greedy") {
            match greedy(&costs, parts, equal_size) {
                Ok(ours) if theirs.is_array() && ours == lists(theirs) => {}
                Err(_) if theirs.get("error").is_some() => {}
                ours => tally.wrong(format!("greedy {nth}: {ours:?} instead of {theirs}")),
            }
        }
        match (partitions(&costs, parts, equal_size), case.get("error")) {
            (Ok(ours), None) if ours == lists(&case["partitions"]) => {}
            (Err(_), Some(_)) => {}
            (ours, _) => tally.wrong(format!("partition {nth}: {ours:?} instead of {}", case["partitions"])),
        }
    }
    for (nth, case) in list(&file, "micro_batches").iter().enumerate() {
        let lengths = indices(&case["seqlens"]);
        let args = &case["args"];
        let argument = |name: &str| args.get(name).map(|value| number(value) as usize);
        let packing = Packing {
            at_least: argument("min_num_micro_batch").unwrap_or(1),
            multiple_of: argument("num_batches_divided_by").unwrap_or(1),
            keep_together: argument("force_group_size").unwrap_or(1),
            small_at_ends: args["use_dynamic_bsz_balance"] != false,
            ..Packing::new(number(&case["max_token_len"]) as usize)
        };
        // The peer also wants the budget to hold a row of the padded width; here only real tokens count.
        let too_wide = number(&case["padded_width"]) > number(&case["max_token_len"]);
        let theirs = &case["micro_batches"];
        tally.ran();
        match micro_batches(&lengths, &packing) {
            Ok(ours) if theirs.is_array() => {
                if ours != lists(theirs) {
                    tally.wrong(format!("micro-batches {nth}: {ours:?} instead of {theirs}"));
                } else if inverse(&ours) != indices(&case["reverse_idx"]) {
                    tally.wrong(format!("micro-batches {nth}: the inverse differs"));
                }
            }
            Err(_) if theirs.get("error").is_some() => {}
            Ok(_) if too_wide => {}
            ours => tally.wrong(format!("micro-batches {nth}: {ours:?} instead of {theirs}")),
        }
    }
    for case in list(&file, "workload") {
        tally.ran();
        let ours: Vec<u64> = indices(&case["seqlens"]).into_iter().map(workload).collect();
        assert_eq!(ours, indices(&case["workload"]).into_iter().map(|w| w as u64).collect::<Vec<_>>());
    }
    for case in list(&file, "reverse_idx") {
        tally.ran();
        assert_eq!(inverse(&[indices(&case["idx"])]), indices(&case["reverse"]));
    }
    tally.finish();
}
