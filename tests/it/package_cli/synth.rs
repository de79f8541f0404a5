//! `synth`: wrong usage. What it writes is tested with small dimensions beside the code.

use super::tool;

#[test]
fn layers_and_experts_that_the_model_does_not_have_are_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("package");
    let run = |layers: &str, experts: &str| {
        let args = ["synth", "glm-5.2", "--layers", layers, "--experts", experts, "--out", out.to_str().unwrap()];
        tool(args).error(2).to_owned()
    };
    let layers = run("77..79", "16");
    assert!(layers.contains("77..79") && layers.contains("0..78"), "{layers}");
    let experts = run("3..6", "4");
    assert!(experts.contains("8") && experts.contains("256"), "{experts}");
    assert!(!out.exists());
}
