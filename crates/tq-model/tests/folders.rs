//! Weights to and from Hugging Face folders and the store's named bytes.
#![allow(clippy::unwrap_used)]

mod common;

use common::models::{families, lively, tokens};
use tq_model::weights::{DType, Head, NamedTensor, NamedTensors, parameters, read_folder, write_folder};
use tq_model::{Decoder, Model, PackedBatch, Placement, TorchModel, Want, init_random, weights_for};

fn scores(model: &mut TorchModel, want: &Want) -> tq_model::TokenStats {
    let mut batch = PackedBatch::new();
    batch.push(&tokens(1, 4, 19), &tokens(2, 9, 19)).unwrap();
    model.score(&batch, want).unwrap()
}

#[test]
fn a_written_folder_opens_as_the_same_model_whole_or_in_shards() {
    for (name, config) in families() {
        for (dtype, limit, shards) in [(DType::F32, usize::MAX, 1), (DType::F32, 30_000, 5), (DType::Bf16, 30_000, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let source =
                Decoder::from_named(&config, Head::Lm, Placement::cpu(dtype), &lively(&config, Head::Lm, 4)).unwrap();
            write_folder(folder.path(), &config, &source.to_named(dtype).unwrap(), limit).unwrap();
            let files = std::fs::read_dir(folder.path())
                .unwrap()
                .filter(|entry| entry.as_ref().unwrap().path().extension().unwrap() == "safetensors")
                .count();
            assert!(if shards == 1 { files == 1 } else { files >= shards }, "{name}: {files} files");
            let mut opened = TorchModel::open(folder.path(), Head::Lm, Placement::cpu(dtype), 0).unwrap();
            assert_eq!(opened.weights(dtype).unwrap(), source.to_named(dtype).unwrap(), "{name}");
            assert_eq!(opened.config(), &config);
            let want = Want::log_probs(1.0);
            assert_eq!(scores(&mut opened, &want), scores(&mut TorchModel::new(source), &want));
        }
    }
}

#[test]
fn a_folder_written_again_in_another_form_forgets_the_old_one() {
    let (_, config) = families().remove(0);
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (init_random(&config, Head::Lm, 1).unwrap(), init_random(&config, Head::Lm, 2).unwrap());
    write_folder(folder.path(), &config, &first, 30_000).unwrap();
    write_folder(folder.path(), &config, &second, usize::MAX).unwrap();
    let read = read_folder(folder.path()).unwrap();
    assert_eq!(read.require("model.norm.weight").unwrap(), second.require("model.norm.weight").unwrap());
    assert_eq!(read.require("lm_head.weight").unwrap(), second.require("lm_head.weight").unwrap());
    write_folder(folder.path(), &config, &first, 30_000).unwrap();
    assert_eq!(
        read_folder(folder.path()).unwrap().require("lm_head.weight").unwrap(),
        first.require("lm_head.weight").unwrap()
    );
}

#[test]
fn random_weights_follow_from_seed_and_name() {
    for (_, config) in families() {
        let weights = init_random(&config, Head::Lm, 3).unwrap();
        assert_eq!(weights, init_random(&config, Head::Lm, 3).unwrap());
        assert_ne!(weights, init_random(&config, Head::Lm, 4).unwrap());
        let specs = parameters(&config, Head::Lm);
        assert!(weights.names().eq(specs.iter().map(|spec| spec.name.as_str())));
        for (name, tensor) in weights.iter() {
            let values = tensor.to_f32().unwrap();
            if name.ends_with("norm.weight") {
                assert!(values.iter().all(|value| *value == 1.0), "{name}");
            } else if name.ends_with("bias") {
                assert!(values.iter().all(|value| *value == 0.0), "{name}");
            } else {
                let deviation =
                    (values.iter().map(|value| f64::from(value * value)).sum::<f64>() / values.len() as f64).sqrt();
                assert!(
                    (deviation - config.initializer_range).abs() < 0.1 * config.initializer_range,
                    "{name}: {deviation}"
                );
            }
        }
    }
}

#[test]
fn a_value_model_opens_from_a_language_model_with_a_fresh_seeded_head() {
    for (name, config) in families() {
        let folder = tempfile::tempdir().unwrap();
        let source = lively(&config, Head::Lm, 4);
        write_folder(folder.path(), &config, &source, usize::MAX).unwrap();
        let open = |seed| TorchModel::open(folder.path(), Head::Value, Placement::cpu(DType::F32), seed).unwrap();
        let (mut critic, mut same, mut other) = (open(1), open(1), open(2));
        assert_eq!(scores(&mut critic, &Want::values()), scores(&mut same, &Want::values()));
        assert_ne!(scores(&mut critic, &Want::values()), scores(&mut other, &Want::values()));
        let weights = critic.weights(DType::F32).unwrap();
        assert_eq!(
            weights.require("model.norm.weight").unwrap(),
            source.require("model.norm.weight").unwrap(),
            "{name}"
        );

        // What was trained comes back: the head in the folder is used, not a fresh one.
        write_folder(folder.path(), &config, &weights, usize::MAX).unwrap();
        assert_eq!(open(7).weights(DType::F32).unwrap(), weights);
    }
}

#[test]
fn a_tied_folder_that_repeats_the_embedding_opens() {
    let (_, config) = families().remove(1);
    assert!(config.tie_word_embeddings);
    let mut weights = init_random(&config, Head::Lm, 1).unwrap();
    weights.insert("lm_head.weight", weights.require("model.embed_tokens.weight").unwrap().clone()).unwrap();
    let kept = weights_for(&config, Head::Lm, 0, &weights).unwrap();
    assert!(kept.get("lm_head.weight").is_none());
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name_and_change_nothing() {
    let (_, config) = families().remove(0);
    let good = lively(&config, Head::Lm, 4);
    let mut model = TorchModel::new(Decoder::from_named(&config, Head::Lm, Placement::cpu(DType::F32), &good).unwrap());
    let mut refusal = |weights: &NamedTensors| {
        let error = model.load_weights(weights).unwrap_err().to_string();
        assert_eq!(model.weights(DType::F32).unwrap(), good);
        error
    };
    let missing = refusal(&good.filtered(|name| name != "model.norm.weight"));
    assert!(missing.contains("missing: model.norm.weight; none unexpected"), "{missing}");
    let mut more = good.clone();
    more.insert("model.extra", NamedTensor::from_f32([1], &[0.0]).unwrap()).unwrap();
    assert!(refusal(&more).contains("none missing; unexpected: model.extra"));
    let mut bent = good.filtered(|name| name != "model.norm.weight");
    bent.insert("model.norm.weight", NamedTensor::from_f32([16], &[1.0; 16]).unwrap()).unwrap();
    assert!(refusal(&bent).contains("model.norm.weight is [16], the model has [32]"));
    let mut counted = good.filtered(|name| name != "model.norm.weight");
    counted.insert("model.norm.weight", NamedTensor::new(DType::I64, [32], vec![0u8; 256]).unwrap()).unwrap();
    assert!(refusal(&counted).contains("is i64, expected f32, bf16 or f64"));
}

#[test]
fn damaged_folders_are_refused_with_the_file() {
    let (_, config) = families().remove(0);
    let refusal = |damage: &dyn Fn(&std::path::Path)| {
        let folder = tempfile::tempdir().unwrap();
        write_folder(folder.path(), &config, &init_random(&config, Head::Lm, 1).unwrap(), 30_000).unwrap();
        damage(folder.path());
        TorchModel::open(folder.path(), Head::Lm, Placement::cpu(DType::F32), 0).unwrap_err().to_string()
    };
    let shard = |folder: &std::path::Path| {
        folder.join(
            std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .find(|name| name.starts_with("model-00002"))
                .unwrap(),
        )
    };
    assert!(refusal(&|folder| std::fs::remove_file(folder.join("config.json")).unwrap()).contains("config.json"));
    assert!(
        refusal(&|folder| std::fs::remove_file(folder.join("model.safetensors.index.json")).unwrap())
            .contains("holds neither")
    );
    assert!(refusal(&|folder| std::fs::remove_file(shard(folder)).unwrap()).contains("model-00002"));
    assert!(refusal(&|folder| std::fs::write(shard(folder), b"no").unwrap()).contains("not a safetensors file"));
    assert!(
        refusal(&|folder| std::fs::write(
            folder.join("model.safetensors.index.json"),
            r#"{"weight_map": {"a": "../b"}}"#
        )
        .unwrap())
        .contains("../b")
    );
}
