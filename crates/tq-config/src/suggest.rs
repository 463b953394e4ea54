//! "Did you mean": the nearest of some known words.

/// The candidate nearest to `word`, if one is near enough to be a slip of the hand: at most a third of the letters
/// apart (two for short words). A dotted key whose parents were left out (`rollout.n`) is nearest to the full one.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(2);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        if candidate == word {
            continue;
        }
        let left_out = candidate.strip_suffix(word).is_some_and(|parents| parents.ends_with('.'));
        let distance = if left_out { 1 } else { distance(word, candidate) };
        // Half of a short word changed is another word.
        let plausible = distance <= allowed && distance * 2 <= candidate.chars().count().max(word.chars().count());
        if plausible && best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Edits between two words: insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let width = b.len() + 1;
    let mut before = vec![0; width];
    let mut above: Vec<usize> = (0..width).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; width];
        for j in 1..=b.len() {
            let substituted = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substituted.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = above;
        above = row;
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_a_swap_once() {
        assert_eq!(distance("rewrad", "reward"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn nearest_takes_the_closest_and_rejects_strangers() {
        let known = ["reward", "rollout", "reference"];
        assert_eq!(nearest("rewrad", known), Some("reward"));
        assert_eq!(nearest("rolout", known), Some("rollout"));
        assert_eq!(nearest("penalty", known), None);
        assert_eq!(nearest("n", ["x"]), None);
    }

    #[test]
    fn a_key_without_its_parents_is_completed() {
        let known = ["actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.optim.lr"];
        assert_eq!(nearest("rollout.n", known), Some("actor_rollout_ref.rollout.n"));
    }
}
