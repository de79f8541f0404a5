use super::*;
use std::io::Write as _;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn a_flag_beats_the_file_and_the_file_beats_the_default() {
    let file = file("package = \"/models/a\"\nlanes = 8\nctx-size = 1024\nlayers = \"0..4\"\nbind = \"127.0.0.1:1\"\n");
    let flags = ServeFlags { lanes: Some(2), ..ServeFlags::default() };
    let config = flags.or(ServeFlags::from_file(file.path()).unwrap()).resolve().unwrap();
    assert_eq!((config.lanes, config.ctx_size, config.batch_size), (2, Some(1024), 512));
    assert_eq!(config.layers, Some(LayerRange::new(0, 4).unwrap()));
    assert_eq!(config.package, Path::new("/models/a"));
}

#[test]
fn forced_attention_paths_reach_the_resolver_by_phase() {
    let file = file("package = \"x\"\nattention-decode = \"dense\"\nattention-long-prefill = \"fallback\"\n");
    let flags = ServeFlags { attention_decode: Some(AttentionPath::CompactFlash), ..ServeFlags::default() };
    let config = flags.or(ServeFlags::from_file(file.path()).unwrap()).resolve().unwrap();
    let (decode, long_prefill) = (Some(AttentionPath::CompactFlash), Some(AttentionPath::Fallback));
    assert_eq!(config.overrides(), Overrides { decode, long_prefill, ..Overrides::default() });
}

#[test]
fn a_printed_config_reads_back_to_itself() {
    let flags = ServeFlags {
        package: Some("/models/a".into()),
        layers: Some("0..30".into()),
        split: Some(vec![10, 20]),
        cache_type_k: Some(CacheType::Q8_0),
        verify_package_sha: Some(true),
        attention_decode: Some(AttentionPath::DirectSparse),
        evidence: Some("/etc/evidence.json".into()),
        model_name: Some("m".into()),
        ..ServeFlags::default()
    };
    let config = flags.resolve().unwrap();
    let file = file(&toml::to_string(&config).unwrap());
    assert_eq!(ServeFlags::from_file(file.path()).unwrap().resolve().unwrap(), config);
}

#[test]
fn keys_come_from_flags_and_file_and_are_never_printed() {
    let keys = file("# staff\nfrom-file \n");
    let flags = ServeFlags {
        package: Some("x".into()),
        api_key: Some(vec!["first-key".parse().unwrap(), "second-key".parse().unwrap()]),
        api_key_file: Some(keys.path().to_owned()),
        ..ServeFlags::default()
    };
    assert!(!format!("{flags:?}").contains("-key\""), "{flags:?}");
    let config = flags.resolve().unwrap();
    assert_eq!(config.api_keys, ApiKeys::new(["first-key", "second-key", "from-file"]).unwrap());
    for shown in [format!("{config:?}"), toml::to_string(&config).unwrap()] {
        assert!(!shown.contains("first-key") && !shown.contains("from-file"), "{shown}");
    }
    // The file is named, so what is printed opens to its keys again.
    let printed = file(&toml::to_string(&config).unwrap());
    let read = ServeFlags::from_file(printed.path()).unwrap().resolve().unwrap();
    assert_eq!(read.api_keys, ApiKeys::new(["from-file"]).unwrap());

    let with_file = |path: &Path| ServeFlags {
        api_key_file: Some(path.to_owned()),
        package: Some("x".into()),
        ..ServeFlags::default()
    };
    for (text, said) in [("# none\n", "there is no key in it"), ("a b\n", "key 1 must be")] {
        let message = with_file(file(text).path()).resolve().unwrap_err().to_string();
        assert!(message.starts_with("`api-key-file ") && message.contains(said), "{message}");
    }
    let gone = with_file(Path::new("/nowhere/keys"));
    assert!(gone.resolve().unwrap_err().to_string().starts_with("cannot read file of API keys `/nowhere/keys`"));
    let config = file("package = \"x\"\napi-key = [\"in-config\"]\n");
    let config = ServeFlags::from_file(config.path()).unwrap().resolve().unwrap();
    assert_eq!(config.api_keys, ApiKeys::new(["in-config"]).unwrap());
}

#[test]
fn unknown_keys_and_bad_values_are_named() {
    let typo = file("package = \"x\"\nlane = 3\n");
    let message = ServeFlags::from_file(typo.path()).unwrap_err().to_string();
    assert!(message.contains("lane"), "{message}");
    let path = file("attention-verify = \"fast\"\n");
    let message = ServeFlags::from_file(path.path()).unwrap_err().to_string();
    assert!(message.contains("must be one of dense, direct-sparse"), "{message}");
    let base = || ServeFlags { package: Some("x".into()), ..ServeFlags::default() };
    for (flags, field) in [
        (ServeFlags { lanes: Some(0), ..base() }, "lanes"),
        (ServeFlags { ctx_size: Some(0), ..base() }, "ctx-size"),
        (ServeFlags { layers: Some("9..2".into()), ..base() }, "layers"),
        (ServeFlags { split: Some(vec![20, 10]), ..base() }, "split"),
        (ServeFlags { batch_size: Some(1 << 20), ..base() }, "batch-size"),
        (ServeFlags { watchdog: Some(0), ..base() }, "watchdog"),
        (ServeFlags { cors_origin: Some(vec!["example.org".into()]), ..base() }, "cors-origin"),
        (ServeFlags { api_key: Some(vec!["a b".parse().unwrap()]), ..base() }, "api-key"),
    ] {
        let message = flags.resolve().unwrap_err().to_string();
        assert!(message.starts_with(&format!("`{field}`")), "{message}");
    }
    assert!(matches!(ServeFlags::default().resolve(), Err(ConfigError::NoPackage)));
    let hub = ServeFlags { package: Some("hf://org/repo@main".into()), ..ServeFlags::default() };
    assert!(hub.resolve().unwrap_err().to_string().starts_with("`hf://org/repo@main` is a reference to a hub"));
}

#[test]
fn the_strategy_of_a_model_goes_before_that_of_all_and_behind_the_command_line() {
    let text =
        "package = \"x\"\nspeculative-strategy = \"disabled\"\n[models.\"org/a\"]\nspeculative-strategy = \"mtp\"\n";
    let file = file(text);
    let flags = || ServeFlags::from_file(file.path()).unwrap();
    let some = |name: &str| Some(name.to_string());
    let config = ServeFlags::default().or(flags()).resolve().unwrap();
    assert_eq!(config, flags().resolve().unwrap());
    let (global, command_line) = (some("disabled"), None);
    assert_eq!(config.strategies("org/a"), Requested { model: some("mtp"), global, command_line });
    assert_eq!(config.strategies("org/b"), Requested { global: some("disabled"), ..Requested::default() });

    let flag = ServeFlags { speculative_strategy: some("auto"), ..ServeFlags::default() };
    let config = flag.or(flags()).resolve().unwrap();
    assert_eq!(config.strategies("org/a"), Requested { command_line: some("auto"), ..Requested::default() });
    // As printed it means the same, for every model.
    let printed = self::file(&toml::to_string(&config).unwrap());
    let read = ServeFlags::from_file(printed.path()).unwrap().resolve().unwrap();
    assert_eq!(read.strategies("org/a"), Requested { global: some("auto"), ..Requested::default() });

    let typo = self::file("package = \"x\"\n[models.a]\nspeculative = \"mtp\"\n");
    let message = ServeFlags::from_file(typo.path()).unwrap_err().to_string();
    assert!(message.contains("speculative"), "{message}");
}
