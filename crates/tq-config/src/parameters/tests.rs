use std::path::PathBuf;

use super::*;

fn set(parameters: &mut Parameters, argument: &str) -> Result<(), String> {
    let argument = Override::parse(argument).expect("valid grammar");
    parameters.apply(&argument).map_err(|refusals| refusals.to_string())
}

#[test]
fn the_built_in_tree_resolves_and_disjoins_from_the_other_classes() {
    let parameters = Parameters::builtin();
    let tree = parameters.resolve().unwrap();
    assert_eq!(tree.to_json()["critic"]["ppo_mini_batch_size"], 256);
    for key in parameters.classes.keys() {
        assert!(parameters.tree.get(key).is_none(), "{key} is both honoured and noted or refused");
    }
}

#[test]
fn the_three_classes_of_keys() {
    let mut parameters = Parameters::builtin();
    set(&mut parameters, "data.train_batch_size=64").unwrap();
    set(&mut parameters, "actor_rollout_ref.rollout.tensor_model_parallel_size=2").unwrap();
    set(&mut parameters, "actor_rollout_ref.actor.fsdp_config.param_offload=True").unwrap();
    set(&mut parameters, "actor_rollout_ref.model.lora_rank=0").unwrap();
    let noted: Vec<_> = parameters.notes().iter().map(|n| n.key.as_str()).collect();
    assert_eq!(
        noted,
        [
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            "actor_rollout_ref.actor.fsdp_config.param_offload",
            "actor_rollout_ref.model.lora_rank"
        ]
    );
    assert_eq!(parameters.resolve().unwrap().to_json()["data"]["train_batch_size"], 64);
    assert_eq!(
        set(&mut parameters, "actor_rollout_ref.model.lora_rank=8").unwrap_err(),
        "argument `actor_rollout_ref.model.lora_rank=8`: actor_rollout_ref.model.lora_rank: found integer `8`; \
         expected integer `0`; LoRA is not built in"
    );
    assert!(
        set(&mut parameters, "data.train_batchsize=64").unwrap_err().contains("did you mean `data.train_batch_size`?")
    );
    assert!(set(&mut parameters, "actor_rollout_ref.rollout.gpu_memory=1").is_err());
    let slip = set(&mut parameters, "actor_rollout_ref.actor.fsdp_config.model_dtyp=bf16").unwrap_err();
    assert!(slip.contains("did you mean `actor_rollout_ref.actor.fsdp_config.model_dtype`?"), "{slip}");
    assert!(set(&mut parameters, "foo=1").unwrap_err().contains("configs/parameters.yaml"));
}

#[test]
fn a_value_of_another_kind_is_refused_at_once() {
    let mut parameters = Parameters::builtin();
    for (argument, expected) in [
        ("data.train_batch_size='8'", "a whole number"),
        ("data.train_batch_size=1.5", "a whole number"),
        ("data.shuffle=1", "true or false"),
        ("actor_rollout_ref.actor.optim.lr=fast", "a number"),
        ("trainer.experiment_name=7", "text (quote it)"),
        ("data=1", "a map of"),
    ] {
        let error = set(&mut parameters, argument).unwrap_err();
        assert!(error.contains(expected), "{argument}: {error}");
    }
    set(&mut parameters, "actor_rollout_ref.actor.optim.lr=1").unwrap();
    set(&mut parameters, "trainer.logger=console").unwrap();
    set(&mut parameters, "data.train_files=[a.parquet,b.parquet]").unwrap();
    assert_eq!(parameters.resolve().unwrap().to_json()["trainer"]["logger"], serde_json::json!(["console"]));
}

#[test]
fn a_path_may_begin_with_the_home_folder() {
    let mut parameters = Parameters::builtin().home(Some("/home/ada/"));
    set(&mut parameters, "data.train_files=[~/a.parquet,/b~/c.parquet]").unwrap();
    set(&mut parameters, "trainer.default_local_dir=~/runs").unwrap();
    let tree = parameters.resolve().unwrap().to_json();
    assert_eq!(tree["data"]["train_files"], serde_json::json!(["/home/ada/a.parquet", "/b~/c.parquet"]));
    assert_eq!(tree["trainer"]["default_local_dir"], "/home/ada/runs");
    let model = &tree["actor_rollout_ref"]["model"]["path"];
    assert_eq!(model, "/home/ada/models/deepseek-llm-7b-chat", "a default");
    assert_eq!(&tree["critic"]["model"]["path"], model, "by reference too");
}

#[test]
fn without_home_a_path_below_it_is_refused_once_somebody_sets_it() {
    let mut parameters = Parameters::builtin().home(None);
    let tree = parameters.resolve().unwrap().to_json();
    assert_eq!(tree["data"]["val_files"], "~/data/rlhf/gsm8k/test.parquet", "a default that nobody may use");
    set(&mut parameters, "actor_rollout_ref.model.path=~/m").unwrap();
    let error = parameters.resolve().unwrap_err().to_string();
    assert!(
        error.contains(
            "argument `actor_rollout_ref.model.path=~/m`: actor_rollout_ref.model.path: found `~/m` while HOME is not \
             set; expected a path that begins elsewhere; set HOME, or write the path out"
        ),
        "{error}"
    );
}

#[test]
fn plus_adds_and_tilde_deletes() {
    let mut parameters = Parameters::builtin();
    set(&mut parameters, "+mine.alpha=0.5").unwrap();
    assert_eq!(parameters.notes().len(), 1, "the stages that ask for it read it");
    assert!(set(&mut parameters, "+data.seed=1").unwrap_err().contains("exists already"));
    set(&mut parameters, "++data.seed=1").unwrap();
    for argument in [
        "+actor_rollout_ref.model.override_config.vocab_size=16",
        "+data.apply_chat_template_kwargs={enable_thinking: false}",
        "critic.shuffle=true",
        "trainer.resume_mode=resume_path",
    ] {
        let refused = set(&mut parameters, argument).unwrap_err();
        assert!(refused.contains("expected "), "{argument}: {refused}");
    }
    set(&mut parameters, "trainer.resume_mode=disable").unwrap();
    set(&mut parameters, "actor_rollout_ref.model.override_config={}").unwrap();
    set(&mut parameters, "~data.truncation").unwrap();
    assert!(set(&mut parameters, "~data.truncation").unwrap_err().contains("does not exist"));
    let tree = parameters.resolve().unwrap().to_json();
    assert_eq!(tree["mine"]["alpha"], 0.5);
    assert_eq!(tree["data"].get("truncation"), None);
}

#[test]
fn a_layer_may_have_dotted_keys_and_reports_every_slip() {
    let mut parameters = Parameters::builtin();
    let layer =
        yaml::parse("data.seed: 7\nactor_rollout_ref.actor: {optim: {lr: 5e-4}, clip_ratio_high: 0.28}\n", "p.yaml")
            .unwrap();
    parameters.layer(&layer).unwrap();
    let tree = parameters.resolve().unwrap();
    assert_eq!(tree.to_json()["actor_rollout_ref"]["actor"]["optim"]["lr"], 5e-4);
    assert_eq!(tree.get("data.seed").unwrap().place().to_string(), "p.yaml:1:1");
    let layer = yaml::parse("data.sed: 7\nalgorithm: {lamb: 1.0}\n", "p.yaml").unwrap();
    let refusals = parameters.layer(&layer).unwrap_err();
    assert_eq!(refusals.0.len(), 2, "{refusals}");
    assert!(refusals.to_string().contains("p.yaml:2:13: algorithm.lamb"), "{refusals}");
}

#[test]
fn of_very_many_slips_the_first_are_explained_and_the_rest_are_counted() {
    let mut parameters = Parameters::builtin();
    let lines: String = (0..60_000).map(|n| format!("data.seed{n}: 1\n")).collect();
    let layer = yaml::parse(&lines, "p.yaml").unwrap();
    let refusals = parameters.layer(&layer).unwrap_err();
    assert_eq!(refusals.0.len(), 60_000);
    let explained = refusals.iter().filter(|refusal| !refusal.action.is_empty()).count();
    assert_eq!(explained, LOOKED_UP, "each further look through the tree costs as much");
    let said = refusals.to_string();
    assert_eq!(said.lines().count(), 101);
    assert!(said.ends_with("… and 59900 more; mend these first"), "{}", said.lines().last().unwrap());
    assert!(set(&mut parameters, "data.train_batchsize=64").is_err_and(|said| !said.contains("did you mean")));
}

#[test]
fn a_stage_declares_a_section_of_its_own() {
    let mut parameters = Parameters::builtin();
    parameters
        .declare("length_penalty", &serde_json::json!({"weight": 0.1}), "defaults of stage length-penalty")
        .unwrap();
    set(&mut parameters, "length_penalty.weight=0.5").unwrap();
    assert!(
        set(&mut parameters, "length_penalty.wait=0.5").unwrap_err().contains("did you mean `length_penalty.weight`?")
    );
    assert!(parameters.declare("data", &serde_json::json!({}), "x").is_err());
}

/// The golden folder, or `None` with a line on stdout.
fn golden(file: &str) -> Option<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::var_os("TQ_GOLDEN").map_or_else(|| root.join("../shared/golden"), |dir| root.join(dir));
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).ok();
    if text.is_none() {
        println!("skipped: {} not found", path.display());
    }
    text
}

#[test]
fn every_key_of_verl_has_a_class_and_the_users_commands_are_accepted() {
    let Some(text) = golden("hydra.jsonl") else {
        return;
    };
    let mut lines = text.lines().map(|line| serde_json::from_str::<Json>(line).expect("JSON lines"));
    let defaults = lines.next().expect("line 0");
    let known = Parameters::builtin();
    for (key, value) in defaults["resolved_flat"].as_object().expect("all leaves") {
        let node = Node::from_json(value, &Origin::code("verl"));
        if known.tree.get(key).is_none() && !key.contains("_target_") {
            assert!(known.classes.class(key, &node).is_some(), "{key} has no class");
        }
    }
    let shell: Vec<_> = lines.filter(|line| line.get("shell").is_some()).collect();
    assert!(!shell.is_empty(), "the users' commands are in the file");
    for command in shell {
        let mut parameters = Parameters::builtin();
        for argument in command["overrides"].as_array().expect("a list") {
            let argument = argument.as_str().expect("text");
            set(&mut parameters, argument).unwrap_or_else(|error| panic!("{error}"));
        }
        parameters.resolve().unwrap();
    }
}

#[test]
fn override_values_read_as_hydra_reads_them() {
    let Some(text) = golden("hydra.jsonl") else {
        return;
    };
    let mut compared = 0;
    for line in text.lines().skip(1) {
        let case: Json = serde_json::from_str(line).expect("JSON lines");
        let Some([argument]) = case["overrides"].as_array().map(Vec::as_slice) else {
            continue;
        };
        let Some(argument) = argument.as_str().filter(|a| a.starts_with("+golden.x=")) else {
            continue;
        };
        let Some(changed) = case["changed"].as_object() else {
            continue;
        };
        // Nested results and values that Hydra computed by functions or resolvers are not primitives.
        let (Some(expected), Ok(parsed)) = (changed.get("golden.x"), Override::parse(argument)) else {
            continue;
        };
        if argument.contains("${") || (expected.is_number() && expected.as_f64().is_some_and(|x| x.abs() > 9.3e18)) {
            continue;
        }
        let expected = match expected.as_str() {
            Some("NaN") => Json::from("nan"),
            Some("Infinity") => Json::from("inf"),
            Some("-Infinity") => Json::from("-inf"),
            _ => expected.clone(),
        };
        assert_eq!(parsed.value.to_json(), expected, "{argument}");
        compared += 1;
    }
    assert!(compared > 30, "only {compared} cases were comparable");
}
