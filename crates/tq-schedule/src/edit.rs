//! Overrides of the pipeline itself.

use tq_config::{Action, Map, Node, Override, Refusal, suggest};

use crate::entry::SECTIONS;
use crate::planner::keys;

/// What an override is about: a parameter, a parameter of one phase, or the pipeline itself.
pub(crate) enum Target<'a> {
    Parameters(&'a str),
    Phase(&'a str, &'a str),
    Pipeline,
}

/// What an override's key is about.
pub(crate) fn target(key: &str) -> Target<'_> {
    if let Some(key) = key.strip_prefix("parameters.") {
        return Target::Parameters(key);
    }
    if let Some(rest) = key.strip_prefix("phases.")
        && let Some((phase, key)) = rest.split_once(".parameters.")
        && !phase.contains('.')
    {
        return Target::Phase(phase, key);
    }
    let section = key.split('.').next().unwrap_or_default();
    if SECTIONS.contains(&section) { Target::Pipeline } else { Target::Parameters(key) }
}

/// Changes the pipeline itself. Fields may be set without `+`, since the vocabulary is checked afterwards; the things
/// they belong to (a stage, a partition, …) must exist.
pub(crate) fn edit(pipeline: &mut Node, argument: &Override) -> Result<(), Refusal> {
    let at = argument.origin();
    let key = argument.key.as_str();
    if argument.action == Action::Delete {
        if pipeline.take(key).is_none() {
            let paths = pipeline.paths();
            return Err(Refusal::new(key, "a key that does not exist", "a key to delete")
                .at(&at)
                .nearest(key, paths.iter().map(String::as_str)));
        }
        return Ok(());
    }
    if argument.action == Action::Add && pipeline.get(key).is_some() {
        return Err(Refusal::new(key, "a key that exists already", "a new key after `+`")
            .at(&at)
            .action("leave the `+` out"));
    }
    let mut parts = key.split('.');
    let (section, name) = (parts.next().unwrap_or_default(), parts.next());
    let named = ["partitions", "models", "stages", "workers", "phases"].contains(&section);
    if let Some(name) = name.filter(|_| named && argument.action == Action::Set)
        && pipeline.get(&format!("{section}.{name}")).is_none()
    {
        let known: Vec<String> = keys(pipeline, section).map(str::to_owned).collect();
        let near = suggest::nearest(name, known.iter().map(String::as_str));
        let action = near.map_or_else(
            || format!("`+{key}=…` adds one"),
            |near| format!("did you mean `{section}.{near}`? `+{key}=…` adds one"),
        );
        return Err(Refusal::new(key, format!("`{name}`"), format!("one of the pipeline's {section}"))
            .at(&at)
            .action(action));
    }
    // `schedule: on_policy` and `schedule.lag=0.5` together are `{use: on_policy, lag: 0.5}`.
    if let Some((parent, _)) = key.rsplit_once('.')
        && (parent == "schedule" || parent.ends_with(".schedule"))
        && let Some(node) = pipeline.get_mut(parent)
        && node.as_str().is_some()
    {
        let preset = Node { key: node.key.clone(), ..node.clone() };
        node.value = tq_config::Value::Map(Map::from([("use".to_owned(), preset)]));
    }
    pipeline.put(key, argument.value.clone());
    Ok(())
}
