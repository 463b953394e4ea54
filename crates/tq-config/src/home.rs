//! `~/` at the start of a text: the user's home folder.

use crate::node::{Node, Value, join};
use crate::{Refusal, Refusals};

/// The folder that `~/` stands for: `HOME`, if it is set to something.
#[must_use]
pub fn folder() -> Option<String> {
    std::env::var("HOME").ok().filter(|home| !home.is_empty())
}

/// Replaces a leading `~/` by `home` in every text of `node`, which lies at the dotted `path`.
///
/// `~` elsewhere in a text, and `~user/`, are left as they are.
///
/// # Errors
/// With `home: None`: every text that begins with `~/`.
///
/// ```
/// use tq_config::{home, yaml};
///
/// let mut tree = yaml::parse("files: [~/a.parquet, b~/c.parquet]\n", "demo.yaml")?;
/// home::expand(&mut tree, "", Some("/home/ada"))?;
/// assert_eq!(tree.to_json()["files"], serde_json::json!(["/home/ada/a.parquet", "b~/c.parquet"]));
///
/// let mut tree = yaml::parse("files: ~/a.parquet\n", "demo.yaml")?;
/// let refused = home::expand(&mut tree, "", None).expect_err("no home");
/// assert!(refused.to_string().starts_with("demo.yaml:1:1: files: found `~/a.parquet` while HOME is not set"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn expand(node: &mut Node, path: &str, home: Option<&str>) -> Result<(), Refusals> {
    let mut refusals = Refusals::default();
    each(node, path, home, &|_| true, &mut refusals);
    refusals.into_result()
}

/// As [`expand`], but without `home` only texts that `matter` are refused; the others stay.
pub(crate) fn each(
    node: &mut Node,
    path: &str,
    home: Option<&str>,
    matter: &dyn Fn(&Node) -> bool,
    refusals: &mut Refusals,
) {
    match &mut node.value {
        Value::Map(map) => {
            for (key, node) in map {
                each(node, &join(path, key), home, matter, refusals);
            }
        }
        Value::List(items) => {
            for (index, node) in items.iter_mut().enumerate() {
                each(node, &format!("{path}[{index}]"), home, matter, refusals);
            }
        }
        Value::Str(text) => {
            let Some(below) = text.strip_prefix("~/") else {
                return;
            };
            if let Some(home) = home {
                *text = format!("{}/{below}", home.trim_end_matches('/'));
            } else if matter(node) {
                let text = node.as_str().unwrap_or_default();
                let found = format!("`{text}` while HOME is not set");
                let refusal = Refusal::new(path, found, "a path that begins elsewhere");
                refusals.push(refusal.at(node.place()).action("set HOME, or write the path out"));
            }
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
    }
}
