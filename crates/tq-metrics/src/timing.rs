//! How long a step took, and what that means per token.

use crate::metrics::Metrics;

/// The tokens a step worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens of all prompts.
    pub prompt: usize,
    /// Tokens of all responses.
    pub response: usize,
}

/// Which timers are divided by which tokens: generation by those of the responses, the rest by all.
const PER_RESPONSE_TOKEN: &str = "gen";
const PER_TOKEN: [&str; 7] = ["old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "sft"];

/// `timing_s/{name}`, `timing_per_token_ms/{name}`, and from the timer called `step` also `perf/total_num_tokens`, `perf/time_per_step` and
/// `perf/throughput` (tokens per second and worker; a worker is what verl calls a GPU).
///
/// Per token means per response token for `gen` and per token of prompt and response for `old_log_prob`, `ref`, `values`, `adv`, `update_critic`,
/// `update_actor` and `sft`; other timers have no such number. With no tokens it is 0.
pub fn metrics(seconds: &[(&str, f64)], tokens: Tokens, workers: usize) -> Metrics {
    let all = tokens.prompt + tokens.response;
    let mut metrics = Metrics::new();
    for (name, time) in seconds {
        metrics.set(format!("timing_s/{name}"), *time);
    }
    for (name, time) in seconds {
        let among = match *name {
            PER_RESPONSE_TOKEN => tokens.response,
            name if PER_TOKEN.contains(&name) => all,
            _ => continue,
        };
        metrics.set(format!("timing_per_token_ms/{name}"), if among == 0 { 0.0 } else { time * 1000.0 / among as f64 });
    }
    if let Some((_, step)) = seconds.iter().find(|(name, _)| *name == "step") {
        metrics.set("perf/total_num_tokens", all as f64);
        metrics.set("perf/time_per_step", *step);
        metrics.set("perf/throughput", all as f64 / (step * workers as f64));
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_reported_whole_per_token_and_as_throughput() {
        let metrics = metrics(
            &[("gen", 2.0), ("adv", 0.5), ("save", 1.0), ("step", 4.0)],
            Tokens { prompt: 300, response: 100 },
            2,
        );
        let expected = [
            ("timing_s/gen", 2.0),
            ("timing_s/adv", 0.5),
            ("timing_s/save", 1.0),
            ("timing_s/step", 4.0),
            ("timing_per_token_ms/gen", 20.0),
            ("timing_per_token_ms/adv", 1.25),
            ("perf/total_num_tokens", 400.0),
            ("perf/time_per_step", 4.0),
            ("perf/throughput", 50.0),
        ];
        assert_eq!(metrics.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_tokens_cost_nothing_each() {
        let metrics = metrics(&[("gen", 2.0)], Tokens { prompt: 0, response: 0 }, 1);
        assert_eq!(metrics.get("timing_per_token_ms/gen"), Some(0.0));
        assert_eq!(metrics.get("perf/throughput"), None, "a step was not timed");
    }
}
