use super::*;
use crate::package::{
    ArtifactFault, LayerRangeError,
    testing::{Mtp, Recipe},
};

fn range(text: &str) -> LayerRange {
    text.parse().unwrap()
}

/// Paths selected for `range`, and why the boundaries are.
fn chosen(recipe: &Recipe, of: &str) -> (Vec<String>, Option<EmbeddingsReason>, Option<OutputReason>) {
    let package = recipe.write();
    let package = package.open();
    let selection = package.select(range(of)).unwrap();
    let short = |path: &str| path.rsplit('/').next().unwrap().trim_end_matches(".gguf").replace("layer-0000", "");
    let paths = selection.entries().map(|entry| short(entry.artifact.path.as_str())).collect();
    (paths, selection.embeddings.map(|(_, reason)| reason), selection.output.map(|(_, reason)| reason))
}

#[test]
fn boundaries_follow_the_range() {
    use EmbeddingsReason::*;
    let plain = Recipe { projectors: 2, ..Recipe::default() };
    let tied = Recipe { tied: true, ..Recipe::default() };
    let mtp = Recipe { mtp: Some(Mtp::ModelEmbeddings), ..Recipe::default() };
    let own = Recipe { mtp: Some(Mtp::OwnEmbeddings), ..Recipe::default() };
    let output = Some(OutputReason::Output);
    let table: [(&Recipe, &str, &[&str], _, _); 12] = [
        (
            &plain,
            "0..3",
            &["metadata", "embeddings", "0", "1", "2", "output", "mmproj-0", "mmproj-1"],
            Some(Input),
            output,
        ),
        (&plain, "0..1", &["metadata", "embeddings", "0", "mmproj-0", "mmproj-1"], Some(Input), None),
        (&plain, "1..2", &["metadata", "1"], None, None),
        (&plain, "1..3", &["metadata", "1", "2", "output"], None, output),
        (&tied, "1..2", &["metadata", "1"], None, None),
        (&tied, "2..3", &["metadata", "embeddings", "2", "output"], Some(TiedOutput), output),
        (&tied, "0..3", &["metadata", "embeddings", "0", "1", "2", "output"], Some(Input), output),
        (&mtp, "2..3", &["metadata", "embeddings", "2", "output"], Some(MtpBlock), output),
        (&mtp, "1..2", &["metadata", "1"], None, None),
        (&own, "2..3", &["metadata", "2", "output"], None, output),
        (&own, "0..2", &["metadata", "embeddings", "0", "1"], Some(Input), None),
        (
            &Recipe { tied: true, ..mtp.clone() },
            "2..3",
            &["metadata", "embeddings", "2", "output"],
            Some(TiedOutput),
            output,
        ),
    ];
    for (recipe, of, paths, embeddings, output) in table {
        let expected = (paths.iter().map(|path| path.to_string()).collect(), embeddings, output);
        assert_eq!(chosen(recipe, of), expected, "{of} of {recipe:?}");
    }
}

#[test]
fn every_stage_gets_the_rotary_factors_wherever_the_writer_put_them() {
    let recipe = |part| Recipe { factors: Some(part), ..Recipe::default() };
    let paths = |part, of| chosen(&recipe(part), of);
    assert_eq!(paths("metadata", "1..2").0, ["metadata", "1"]);
    let (parts, embeddings, output) = paths("embeddings", "1..2");
    assert_eq!(parts, ["metadata", "embeddings", "1"]);
    assert_eq!((embeddings, output), (Some(EmbeddingsReason::RotaryFactors), None));
    let (parts, embeddings, output) = paths("output", "0..2");
    assert_eq!(parts, ["metadata", "embeddings", "0", "1", "output"]);
    assert_eq!((embeddings, output), (Some(EmbeddingsReason::Input), Some(OutputReason::RotaryFactors)));
    assert_eq!(paths("output", "2..3").2, Some(OutputReason::Output));
}

#[test]
fn a_stage_needs_only_its_own_files() {
    let package = Recipe::default().write();
    for path in ["shared/embeddings.gguf", "shared/output.gguf", "layers/layer-00000.gguf", "layers/layer-00002.gguf"] {
        std::fs::remove_file(package.file(path)).unwrap();
    }
    let package = package.open();
    let selection = package.select(range("1..2")).unwrap();
    assert!(package.load(&selection, crate::package::Verify::Sha256).is_ok());
    // The final stage asks whether the output is tied, so its absence is told at once.
    let error = package.select(range("2..3")).unwrap_err();
    let PackageError::Artifact(error) = error else { panic!("{error}") };
    assert!(matches!(*error.fault, ArtifactFault::Missing));
    assert_eq!(error.path.as_str(), "shared/output.gguf");
}

#[test]
fn ranges_outside_the_model_are_refused() {
    let package = Recipe::default().write();
    let package = package.open();
    for of in ["0..4", "3..4", "7..9"] {
        let error = package.select(range(of)).unwrap_err();
        assert!(matches!(error, PackageError::Range(LayerRangeError::OutOfRange { layer_count: 3, .. })));
        assert_eq!(error.to_string(), format!("layer range {of} is outside the model: it has layers 0..3"));
        assert!(error.issues().is_empty());
    }
}

#[test]
fn bytes_are_summed() {
    let package = Recipe { projectors: 1, ..Recipe::default() }.write();
    let package = package.open();
    let selection = package.select(range("0..3")).unwrap();
    let manifest = package.manifest();
    assert_eq!(
        selection.artifact_bytes(),
        manifest.artifacts().map(|(_, artifact)| artifact.artifact_bytes).sum::<u64>()
    );
    let projector = manifest.projectors[0].artifact.tensor_bytes;
    let all = manifest.artifacts().map(|(_, artifact)| artifact.tensor_bytes).sum::<u64>();
    assert_eq!(selection.tensor_bytes(), all - projector);
}
