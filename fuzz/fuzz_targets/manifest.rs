//! Any bytes: the manifest is refused in short, printable words, or survives a rewrite unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skippy_stage::package::Manifest;

fuzz_target!(|bytes: &[u8]| {
    let manifest = match Manifest::parse(bytes) {
        Ok(manifest) => manifest,
        Err(error) => {
            for message in error.faults().map(ToString::to_string).chain([error.to_string()]) {
                assert!(message.len() < 2000 && !message.contains(char::is_control), "{message:?}");
            }
            return;
        }
    };
    assert!(manifest.layers.iter().zip(0..).all(|(layer, index)| layer.layer_index == index));
    assert_eq!(manifest.layers.len(), manifest.layer_count as usize);
    for unsupported in manifest.generation.iter().flat_map(|generation| generation.unsupported()) {
        let message = unsupported.to_string();
        assert!(message.len() < 2000 && !message.contains(char::is_control), "{message:?}");
    }
    let again = Manifest::parse(manifest.to_json().as_bytes()).expect("what was read can be written and read");
    assert_eq!(again, manifest);
    for (field, artifact) in manifest.artifacts() {
        let path = artifact.path.as_str();
        let leaves = path.split('/').any(|part| matches!(part, "" | "." | ".."));
        assert!(!leaves && !path.contains(['\\', '\0']), "{field}: {path:?}");
    }
});
