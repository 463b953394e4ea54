//! Chat templates and tokenizers against recorded results of `transformers`.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Map, Value};
use tq_data::{ChatTemplate, Tokenizer};

fn folder(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable)
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(default), PathBuf::from)
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_i64).collect()
}

/// Templates by tokenizer, with the special tokens as their variables.
fn templates(head: &Value) -> HashMap<String, ChatTemplate> {
    let of = |(name, source): (&String, &Value)| {
        let special = head["special"][name].as_object().expect("special tokens are listed");
        let mut variables: Map<String, Value> = special
            .iter()
            .filter(|(_, v)| v.is_string())
            .map(|(key, token)| (format!("{key}_token"), token.clone()))
            .collect();
        if name == "digit_completion" {
            variables.insert("sep_token".into(), "S".into());
        }
        let template = ChatTemplate::new(source.as_str().expect("a template is text"), variables);
        (name.clone(), template.unwrap_or_else(|e| panic!("{name}: {e}")))
    };
    head["chat_templates"].as_object().expect("templates are listed").iter().map(of).collect()
}

#[test]
fn chat_templates_and_tokenizers_agree_with_the_recorded_results() {
    let path = folder("TQ_GOLDEN", "../shared/golden").join("chat_template.jsonl");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} not found (set TQ_GOLDEN)", path.display());
        return;
    };
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON lines"));
    let head = lines.next().expect("a first line");
    let templates = templates(&head);
    let data = folder("TQ_SHARED", "../shared").join("data");
    let places =
        [("digit_completion", "digits/model"), ("stories260k", "stories260K"), ("smollm2", "smollm2_tokenizer")];
    let tokenizers: HashMap<&str, Tokenizer> =
        places.iter().filter_map(|(name, place)| Some((*name, Tokenizer::load(&data.join(place)).ok()?))).collect();

    let (mut run, mut skipped, mut wrong) = (0, 0, Vec::new());
    for case in lines {
        let name = case["tokenizer"].as_str().expect("a tokenizer");
        let id = &case["id"];
        let mut check = |what: &str, ours: Value, theirs: &Value| {
            if ours != *theirs {
                wrong.push(format!("{id} {name} {what}: {ours} instead of {theirs}"));
            }
        };
        if case["kind"] == "chat_template" {
            let mut variables = case["options"].as_object().expect("options").clone();
            if variables.contains_key("continue_final_message") {
                skipped += 1; // a post-processing of the text that prompts of a data set do not use
                continue;
            }
            if let Some(tools) = case.get("tools") {
                variables.insert("tools".into(), tools.clone());
            }
            let rendered = templates[name].render(case["messages"].as_array().expect("messages"), &variables);
            match (rendered, case.get("error")) {
                (Ok(text), None) => {
                    if let Some(tokenizer) = tokenizers.get(name) {
                        check("ids", tokenizer.encode(&text).expect("encodes").into(), &case["ids"]);
                    }
                    check("text", text.into(), &case["rendered"]);
                }
                (Err(_), Some(_)) => {}
                (ours, theirs) => check("outcome", format!("{ours:?}").into(), &theirs.cloned().unwrap_or_default()),
            }
            run += 1;
            continue;
        }
        let Some(tokenizer) = tokenizers.get(name) else {
            skipped += 1;
            continue;
        };
        let theirs = ids(&case["ids"]);
        if case["kind"] == "tokenize" {
            let text = case["text"].as_str().expect("a text");
            check("ids", tokenizer.encode(text).expect("encodes").into(), &case["ids"]);
            check(
                "ids with special tokens",
                tokenizer.encode_with_special(text).expect("encodes").into(),
                &case["ids_with_special"],
            );
        }
        check("decoded", tokenizer.decode(&theirs, false).expect("decodes").into(), &case["decoded"]);
        check(
            "decoded without special tokens",
            tokenizer.decode(&theirs, true).expect("decodes").into(),
            &case["decoded_skip_special"],
        );
        run += 1;
    }
    println!("chat_template.jsonl: {run} run, {skipped} skipped");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
