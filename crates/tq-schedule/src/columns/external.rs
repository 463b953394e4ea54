//! The columns that readers outside the run name.

use indexmap::IndexMap;
use tq_config::{Refusals, join};

use super::{Binder, Cells};
use crate::tasks::Draft;

impl<'a> Binder<'a> {
    /// Makes task `index` a reader of the columns it names, each under its own name.
    pub(super) fn external(
        &self,
        index: usize,
        draft: &Draft,
        named: &[String],
        columns: &mut Cells<'a>,
        refusals: &mut Refusals,
    ) -> IndexMap<String, String> {
        let mut bound = IndexMap::new();
        for name in named {
            if bound.contains_key(name) {
                let key = join(&draft.key, "with.columns");
                refusals.push(self.scope.refuse(&key, format!("`{name}` twice"), "each column once"));
            } else if let Some(cell) = columns.get_mut(name) {
                cell.readers.push(index);
                bound.insert(name.clone(), name.clone());
            } else if self.complete {
                let key = join(&draft.key, "with.columns");
                let expected = format!("a column of `{}`", draft.partition);
                let refusal = self.scope.refuse(&key, format!("`{name}`"), expected);
                refusals.push(refusal.nearest(name, columns.keys().map(String::as_str)));
            }
        }
        bound
    }
}
