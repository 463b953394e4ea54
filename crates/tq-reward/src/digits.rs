//! The reward of the digits task.

use crate::error::Result;
use crate::sample::{Sample, Score, Scorer};

/// The task's name in the column `data_source`.
pub(crate) const DATA_SOURCE: &str = "digit_completion";

/// Partial credit for a sequence that begins right.
///
/// The right answer of `c` characters has `c + 1` symbols, the end symbol being the last. Each symbol of the response that equals the symbol due at
/// its place earns `1 / (c + 1)`, until the first mismatch; what follows earns nothing. So a perfect answer scores exactly 1, and one that goes on
/// where it should end scores `c / (c + 1)`.
///
/// A token of several characters earns for those of its characters that match; after one that matches in part nothing more is earned.
#[derive(Debug, Clone, Copy, Default)]
pub struct DigitCompletion;

impl Scorer for DigitCompletion {
    fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let due: Vec<char> = sample.ground_truth.chars().collect();
        let symbols = due.len() + 1;
        let mut rewards = vec![0.0; sample.response.len()];
        let mut matched = 0;
        for (piece, reward) in sample.response.iter().zip(&mut rewards) {
            let (earned, whole) = if piece.end {
                let right = matched == due.len();
                (usize::from(right), false)
            } else {
                let earned = piece.text.chars().zip(&due[matched..]).take_while(|(found, due)| found == *due).count();
                (earned, earned > 0 && earned == piece.text.chars().count())
            };
            *reward = earned as f32 / symbols as f32;
            matched += earned;
            if !whole {
                break;
            }
        }
        Ok(Score { rewards, total: matched as f32 / symbols as f32, extra: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Piece;
    use proptest::prelude::*;

    /// Characters are tokens; `E` ends.
    fn score(truth: &str, response: &str) -> Score {
        let pieces: Vec<Piece> =
            response.chars().map(|c| if c == 'E' { Piece::end("E") } else { Piece::text(c) }).collect();
        DigitCompletion.score(&Sample::new(DATA_SOURCE, truth, &pieces)).expect("digits always score")
    }

    #[test]
    fn a_perfect_answer_scores_exactly_one_for_every_length() {
        for count in 1..=9 {
            let truth = vec!["7"; count].join(",");
            let perfect = score(&truth, &format!("{truth}E"));
            assert_eq!(perfect.total, 1.0);
            assert!(perfect.rewards.iter().all(|r| *r == 1.0 / (2 * count) as f32));
        }
    }

    #[test]
    fn credit_stops_at_the_first_mismatch() {
        let wrong = score("5,7,0", "5,8,0E");
        assert_eq!(wrong.rewards, [1.0 / 6.0, 1.0 / 6.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(wrong.total, 2.0 / 6.0);
    }

    #[test]
    fn the_end_symbol_counts_only_after_the_whole_answer() {
        assert_eq!(score("5,7", "5E").rewards, [0.25, 0.0]);
        assert_eq!(score("5,7", "5,7E").total, 1.0);
        assert_eq!(score("5,7", "5,7,1E").total, 0.75, "going on earns nothing more");
        assert_eq!(score("5,7", "5,7").total, 0.75, "a response cut off before its end misses the last symbol");
    }

    #[test]
    fn tokens_after_the_end_earn_nothing() {
        assert_eq!(score("5", "5E5E").rewards, [0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn an_empty_answer_is_answered_by_the_end_alone() {
        assert_eq!(score("", "E").total, 1.0);
        assert_eq!(score("", "1E").total, 0.0);
    }

    #[test]
    fn an_empty_response_scores_zero() {
        let nothing = score("5", "");
        assert!(nothing.rewards.is_empty());
        assert_eq!(nothing.total, 0.0);
    }

    #[test]
    fn a_token_of_several_characters_earns_for_those_that_match() {
        let pieces = [Piece::text("5,"), Piece::text("78"), Piece::end("E")];
        let part = DigitCompletion.score(&Sample::new(DATA_SOURCE, "5,7", &pieces)).expect("digits always score");
        assert_eq!(part.rewards, [0.5, 0.25, 0.0]);
    }

    #[test]
    fn special_tokens_inside_a_response_are_mismatches() {
        let pieces = [Piece::text("5"), Piece::text(""), Piece::text(","), Piece::text("7")];
        let score = DigitCompletion.score(&Sample::new(DATA_SOURCE, "5,7", &pieces)).expect("digits always score");
        assert_eq!(score.rewards, [0.25, 0.0, 0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn the_total_is_the_length_of_the_common_beginning(truth in "[0-2,]{0,8}", response in "[0-2,]{0,10}E?") {
            let due: Vec<char> = format!("{truth}E").chars().collect();
            let common = response.chars().zip(&due).take_while(|(a, b)| a == *b).count();
            let scored = score(&truth, &response);
            prop_assert_eq!(scored.total, common as f32 / due.len() as f32);
            prop_assert!((scored.rewards.iter().sum::<f32>() - scored.total).abs() < 1e-6);
        }
    }
}
