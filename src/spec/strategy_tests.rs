use serde_json::{Value, json};

use super::*;
use crate::package::{Manifest, generation::full_sample};

const HEAD: DraftHead<'_> = DraftHead { nextn_layers: &[2], engine: true };
const NO_TENSORS: DraftHead<'_> = DraftHead { nextn_layers: &[], engine: false };
const NO_ENGINE: DraftHead<'_> = DraftHead { nextn_layers: &[2], engine: false };
const ELSEWHERE: DraftHead<'_> = DraftHead { nextn_layers: &[1], engine: true };

/// A package that declares every kind of strategy, with `default` as its recommendation.
fn declared(default: Value) -> SpeculativeDecoding {
    let mut manifest = full_sample();
    let speculation = &mut manifest["generation"]["speculative_decoding"];
    speculation["strategies"]["later"] = json!({"type": "oracle"});
    speculation["default"] = default;
    if speculation["default"].is_null() {
        speculation.as_object_mut().unwrap().shift_remove("default");
    }
    let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
    manifest.generation.unwrap().speculative_decoding.unwrap()
}

fn on_command_line(name: &str) -> Requested {
    Requested { command_line: Some(name.into()), ..Requested::default() }
}

fn resolve(
    requested: &Requested,
    declared: Option<&SpeculativeDecoding>,
    head: DraftHead<'_>,
) -> Result<Speculation, StrategyError> {
    plan(requested, declared)?.fit(head)
}

/// What is served, as `id/source`, or the start of the error or of the notice.
fn outcome(name: Option<&str>, declared: Option<&SpeculativeDecoding>, head: DraftHead<'_>) -> String {
    let requested = name.map_or_else(Requested::default, on_command_line);
    match resolve(&requested, declared, head) {
        Ok(Speculation { strategy, source, notice, kind }) => {
            assert_eq!(kind == SpeculationKind::Disabled, strategy == "disabled");
            let notice = notice.map(|notice| format!(": {notice}")).unwrap_or_default();
            format!("{strategy}/{source:?}{notice}")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_value_against_every_kind_of_package() {
    let (all, none) = (declared(json!("mtp")), declared(Value::Null));
    let (composite, inline, unknown) =
        (declared(json!("mtp-cache")), declared(json!("mtp-inline")), declared(json!("later")));
    let (mtp_cache, suffix) = ("`mtp-cache` (the package's default)", "`ngram-suffix` (from the command line)");
    let cases = [
        // Nothing asked for, or `auto`: the package's recommendation, and its obstacles are reported.
        (None, None, HEAD, "disabled/Default".to_string()),
        (None, Some(&none), HEAD, "disabled/Default".into()),
        (None, Some(&all), HEAD, "mtp/Package".into()),
        (None, Some(&inline), HEAD, "mtp-inline/Package".into()),
        (Some("auto"), None, HEAD, "disabled/CommandLine".into()),
        (Some("auto"), Some(&none), HEAD, "disabled/CommandLine".into()),
        (Some("auto"), Some(&all), HEAD, "mtp/Package".into()),
        (Some("auto"), Some(&all), NO_TENSORS, "disabled/Package: `speculative-strategy` `mtp` (the package's default): the package has no NextN (MTP) tensors to draft with; use `auto` or `disabled`".into()),
        (Some("auto"), Some(&all), NO_ENGINE, "disabled/Package: `speculative-strategy` `mtp` (the package's default): the engine that serves this model cannot draft".into()),
        (Some("auto"), Some(&all), ELSEWHERE, "disabled/Package: `speculative-strategy` `mtp` (the package's default): the package names layers [2] for it, NextN tensors are in [1]".into()),
        (Some("auto"), Some(&composite), HEAD, format!("disabled/Package: `speculative-strategy` {mtp_cache}: strategies of type `composite` are not supported by this version")),
        (Some("auto"), Some(&unknown), HEAD, "disabled/Package: `generation.speculative_decoding.strategies.later.type`: \"oracle\" is not supported by this version".into()),
        // `disabled` always works.
        (Some("disabled"), Some(&all), HEAD, "disabled/CommandLine".into()),
        (Some("disabled"), None, NO_TENSORS, "disabled/CommandLine".into()),
        // `mtp` needs tensors and an engine, not a declaration.
        (Some("mtp"), None, HEAD, "mtp/CommandLine".into()),
        (Some("mtp"), Some(&unknown), HEAD, "mtp/CommandLine".into()),
        (Some("mtp"), Some(&all), ELSEWHERE, "mtp/CommandLine".into()),
        (Some("native-mtp-n1"), Some(&none), HEAD, "mtp/CommandLine".into()),
        (Some("mtp"), Some(&all), NO_TENSORS, "`speculative-strategy` `mtp` (from the command line): the package has no NextN".into()),
        (Some("native-mtp-n1"), None, NO_TENSORS, "`speculative-strategy` `mtp` (from the command line): the package has no NextN".into()),
        (Some("mtp"), None, NO_ENGINE, "`speculative-strategy` `mtp` (from the command line): the engine that serves".into()),
        // A declared name.
        (Some("mtp-inline"), Some(&none), HEAD, "mtp-inline/CommandLine".into()),
        (Some("mtp-inline"), Some(&none), NO_TENSORS, "`speculative-strategy` `mtp-inline` (from the command line): the package has no NextN".into()),
        (Some("mtp-inline"), Some(&none), ELSEWHERE, "`speculative-strategy` `mtp-inline` (from the command line): the package names layers [2] for it, NextN tensors are in [1]".into()),
        (Some("ngram-suffix"), Some(&all), HEAD, format!("`speculative-strategy` {suffix}: strategies of type `ngram-suffix` are not supported by this version")),
        (Some("mtp-cache"), Some(&all), HEAD, "`speculative-strategy` `mtp-cache` (from the command line): strategies of type `composite` are not supported".into()),
        (Some("draft"), Some(&all), HEAD, "`speculative-strategy` `draft` (from the command line): strategies of type `draft-model` are not supported".into()),
        (Some("later"), Some(&all), HEAD, "`speculative-strategy` `later` (from the command line): strategies of type `oracle` are not supported".into()),
        // Any other name.
        (Some("mtp-inline"), None, HEAD, "`speculative-strategy` `mtp-inline` (from the command line): not declared by the package, expected `auto`, `disabled` or `mtp`: it declares none".into()),
        (Some("MTP"), Some(&all), HEAD, "`speculative-strategy` `MTP` (from the command line): not declared by the package, expected `auto`, `disabled`, `mtp` or one of `draft`, `later`, `mtp`".into()),
        (Some(""), Some(&all), HEAD, "`speculative-strategy` `` (from the command line): not declared by the package".into()),
        (Some("a\nb"), None, HEAD, "`speculative-strategy` `a\\nb` (from the command line): not declared".into()),
    ];
    for (name, declared, head, wanted) in cases {
        let got = outcome(name, declared, head);
        let exact = !wanted.contains(':');
        assert!(if exact { got == wanted } else { got.starts_with(&wanted) }, "{name:?}: {got}, expected {wanted}");
    }
}

#[test]
fn the_nearest_level_wins_and_is_named() {
    let all = declared(json!("mtp"));
    let some = |name: &str| Some(name.to_string());
    let cases = [
        (some("disabled"), some("mtp"), some("mtp-inline"), ("disabled", Level::CommandLine)),
        (None, some("mtp-inline"), some("disabled"), ("mtp-inline", Level::Model)),
        (None, None, some("mtp-inline"), ("mtp-inline", Level::Global)),
        (None, None, None, ("mtp", Level::Package)),
        // `auto` on the command line takes the package's word over the levels below.
        (some("auto"), some("disabled"), some("disabled"), ("mtp", Level::Package)),
        (None, some("auto"), some("disabled"), ("mtp", Level::Package)),
    ];
    for (command_line, model, global, (strategy, source)) in cases {
        let requested = Requested { command_line, model, global };
        let speculation = resolve(&requested, Some(&all), HEAD).unwrap();
        assert_eq!((speculation.strategy.as_str(), speculation.source), (strategy, source), "{requested:?}");
    }
    // A value that cannot be served does not fall through to the next level.
    let requested = Requested { model: some("typo"), global: some("mtp"), command_line: None };
    assert!(matches!(
        resolve(&requested, Some(&all), HEAD),
        Err(StrategyError::Undeclared { level: Level::Model, .. })
    ));
}

#[test]
fn windows_and_json() {
    assert_eq!(plan(&on_command_line("mtp"), None).unwrap().window(), 2);
    assert_eq!(plan(&Requested::default(), None).unwrap().window(), 1);
    let json = |speculation: &Speculation| serde_json::to_value(speculation).unwrap();
    assert_eq!(
        json(&Speculation::native_mtp()),
        json!({"strategy": "mtp", "type": "native-mtp", "depth": 1, "source": "command_line"})
    );
    assert_eq!(json(&Speculation::default()), json!({"strategy": "disabled", "type": "disabled", "source": "default"}));
}
