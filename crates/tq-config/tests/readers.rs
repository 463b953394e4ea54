//! Every key of `configs/parameters.yaml` has a reader, found in the sources of the workspace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tq_config::{Parameters, Value};

/// They list keys that they do not read themselves.
const NO_READERS: [&str; 2] = ["switches.rs", "ranges.rs"];

/// Crates whose code reads sections on behalf of the crates that depend on them.
const SHARED: [&str; 2] = ["tq-model-stage", "tq-stage"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files below `folder` that end in `.EXTENSION`, without comments and without tests.
fn sources(folder: &Path, extension: &str) -> String {
    let mut text = String::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return text;
    };
    for path in entries.map(|entry| entry.expect("an entry of the folder").path()) {
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() {
            text.push_str(&sources(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension)
            && !NO_READERS.contains(&&*name)
            && name != "tests.rs"
        {
            let file = fs::read_to_string(&path).expect("a source file");
            let code = file.split("#[cfg(test)]").next().unwrap_or_default();
            for line in code.lines() {
                let line = line.trim_start();
                if !line.starts_with("//") {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    text
}

/// Who may read parameters.
struct Readers {
    /// The code of each crate, with that of the shared crates it depends on.
    crates: Vec<String>,
    /// The pipelines and the values of the parameters themselves, which refer by `${…}`.
    references: String,
}

impl Readers {
    fn find() -> Self {
        let mut own = BTreeMap::new();
        for entry in fs::read_dir(root().join("crates")).expect("the workspace") {
            let folder = entry.expect("an entry of the folder").path();
            let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
            own.insert(name, (manifest, sources(&folder.join("src"), "rs")));
        }
        own.remove("tq-config");
        let with_shared = |(manifest, code): &(String, String)| {
            let shared = SHARED.iter().filter(|name| {
                let dependency = format!("\n{name}.workspace");
                manifest.contains(&dependency)
            });
            shared.fold(code.clone(), |all, name| all + &own[*name].1)
        };
        let crates = own.values().map(with_shared).collect();
        let mut references = sources(&root().join("pipelines"), "yaml");
        for (_, node) in Parameters::builtin().tree().leaves() {
            if let Value::Str(text) = &node.value {
                references.push_str(text);
            }
        }
        Self { crates, references }
    }

    fn has(&self, key: &str) -> bool {
        self.references.contains(&format!("${{{key}}}")) || self.crates.iter().any(|code| reads(code, key))
    }
}

/// Whether `code` names the key (`"a.b.c"`, `"/a/b/c"`), or reads the section it lies in and takes it from there: by
/// a format string (`"{}.c"`) or as a field of a struct that is deserialized.
fn reads(code: &str, key: &str) -> bool {
    let pointer = format!("\"/{}\"", key.replace('.', "/"));
    if code.contains(&format!("\"{key}\"")) || code.contains(&pointer) {
        return true;
    }
    let Some((section, name)) = key.rsplit_once('.') else {
        return false;
    };
    let taken = code.contains(&format!("}}.{name}\"")) || is_field(code, name);
    taken && reads(code, section)
}

fn is_field(code: &str, name: &str) -> bool {
    let renamed = format!("rename = \"{name}\"");
    let is_type = |rest: &str| rest.starts_with(": ") && rest.ends_with(',') && !rest.contains('(');
    let is_declared = |line: &str| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        line.strip_prefix(name).is_some_and(is_type)
    };
    code.contains(&renamed) || code.lines().any(|line| is_declared(line) || is_tuple(line, name))
}

/// `betas: (f64, f64),`
fn is_tuple(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.starts_with(": (") && rest.ends_with("),"))
}

#[test]
fn every_parameter_is_read_by_somebody() {
    let readers = Readers::find();
    let parameters = Parameters::builtin();
    let leaves = parameters.tree().leaves();
    assert!(leaves.len() > 100, "only {} keys were found", leaves.len());
    let silent: Vec<&str> = leaves.iter().map(|(key, _)| key.as_str()).filter(|key| !readers.has(key)).collect();
    assert!(
        silent.is_empty(),
        "nobody reads {silent:#?}; honour them, or move them to configs/keys.yaml as noted or refused"
    );
}

#[test]
fn a_parameter_without_reader_is_found() {
    let readers = Readers::find();
    for key in [
        "data.nobody_reads_this",
        "actor_rollout_ref.actor.shuffle",
        "actor_rollout_ref.actor.data_loader_seed",
        "critic.use_dynamic_bsz",
        "critic.model.tokenizer_path",
        "reward.num_workers",
        "algorithm.kl_ctrl.horizon",
        "trainer.save_freq",
        "trainer.val_only",
    ] {
        assert!(!readers.has(key), "{key} counts as read");
    }
}
