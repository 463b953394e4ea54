//! `where`: which rows a task is owed, by their tags and versions.

use std::cmp::Ordering::{self, Equal};

use serde::{Deserialize, Serialize};

use super::command::{RowHead, Tag};

/// A condition on one row's tags and versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Predicate {
    /// The tag is there and equal.
    Is(String, Tag),
    /// The tag is there and at least this.
    AtLeast(String, Tag),
    /// The tag is there and at most this.
    AtMost(String, Tag),
    /// The version of the first token is at least this.
    FirstVersionAtLeast(u64),
    /// The condition does not hold.
    Not(Box<Predicate>),
    /// All hold.
    All(Vec<Predicate>),
    /// At least one holds.
    Any(Vec<Predicate>),
}

impl Predicate {
    /// Whether the row matches. A missing tag matches no comparison, nor does one of another type (integers and floats
    /// compare by value).
    pub fn matches(&self, row: &RowHead) -> bool {
        match self {
            Self::Is(name, tag) => row.tags.get(name).is_some_and(|t| t.compare(tag) == Some(Equal)),
            Self::AtLeast(name, tag) => row.tags.get(name).and_then(|t| t.compare(tag)).is_some_and(Ordering::is_ge),
            Self::AtMost(name, tag) => row.tags.get(name).and_then(|t| t.compare(tag)).is_some_and(Ordering::is_le),
            Self::FirstVersionAtLeast(version) => row.span.map_or(row.version, |s| s.first) >= *version,
            Self::Not(inner) => !inner.matches(row),
            Self::All(all) => all.iter().all(|p| p.matches(row)),
            Self::Any(any) => any.iter().any(|p| p.matches(row)),
        }
    }

    /// Whether no row can match both, as far as their form shows: one is the other's [`Predicate::Not`], both ask the
    /// same tag for different values or ranges that do not meet, or one is an [`Predicate::All`] or [`Predicate::Any`]
    /// of such parts.
    pub fn disjoint(a: &Self, b: &Self) -> bool {
        let apart = |a: &Self, b: &Self| match (a, b) {
            (Self::Not(inner), other) if **inner == *other => true,
            (Self::Is(m, x), Self::Is(n, y)) => m == n && x.compare(y) != Some(Equal),
            (Self::Is(m, x) | Self::AtMost(m, x), Self::AtLeast(n, low)) => {
                m == n && x.compare(low).is_none_or(Ordering::is_lt)
            }
            (Self::AtMost(m, high), Self::Is(n, x)) => m == n && x.compare(high).is_none_or(Ordering::is_gt),
            (Self::All(parts), other) => parts.iter().any(|part| Self::disjoint(part, other)),
            (Self::Any(parts), other) => parts.iter().all(|part| Self::disjoint(part, other)),
            _ => false,
        };
        apart(a, b) || apart(b, a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disjoint_filters_are_recognised_by_their_form() {
        let is = |value: i64| Predicate::Is("kind".into(), Tag::Int(value));
        let low = Predicate::AtMost("kind".into(), Tag::Int(3));
        let high = Predicate::AtLeast("kind".into(), Tag::Int(4));
        assert!(Predicate::disjoint(&is(1), &is(2)));
        assert!(!Predicate::disjoint(&is(1), &is(1)));
        assert!(Predicate::disjoint(&low, &high));
        assert!(Predicate::disjoint(&is(9), &low));
        assert!(!Predicate::disjoint(&is(3), &low));
        assert!(Predicate::disjoint(&is(1), &Predicate::Not(Box::new(is(1)))));
        assert!(Predicate::disjoint(&Predicate::All(vec![is(1), low.clone()]), &high));
        assert!(Predicate::disjoint(&high, &Predicate::Any(vec![is(1), low])));
        assert!(!Predicate::disjoint(&high, &Predicate::Any(vec![is(1), is(5)])));
        assert!(!Predicate::disjoint(&is(1), &Predicate::Is("other".into(), Tag::Int(2))));
    }

    #[test]
    fn tags_compare_within_a_type_and_numbers_by_value() {
        let text = |value: &str| Tag::Text(value.into());
        assert_eq!(text("a").compare(&text("b")), Some(Ordering::Less));
        assert_eq!(Tag::Bool(true).compare(&Tag::Bool(false)), Some(Ordering::Greater));
        assert_eq!(Tag::Int(2).compare(&Tag::Float(1.5)), Some(Ordering::Greater));
        assert_eq!(Tag::Float(1.5).compare(&Tag::Int(2)), Some(Ordering::Less));
        assert_eq!(Tag::Float(1.5).compare(&Tag::Float(1.5)), Some(Equal));
        assert_eq!(Tag::Int(1).compare(&text("1")), None);
    }
}
