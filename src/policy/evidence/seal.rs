//! The seal of an evidence file: a digest of everything else in it, in a form that does not depend on spaces, on the order
//! of members, or on how a number is printed.

use serde_json::{Value, json};

use super::{Measurement, Origin, VERSION};
use crate::package::{Sha256Digest, generation::Vocabulary as _};

/// `sha256:` and the digest of the canonical form.
pub(super) fn of(origin: &Origin, entries: &[Measurement]) -> String {
    format!("sha256:{}", Sha256Digest::of(canonical(origin, entries).as_bytes()))
}

/// Compact JSON with members in a fixed order; measured numbers as the 16 hexadecimal digits of their IEEE 754 bits.
fn canonical(origin: &Origin, entries: &[Measurement]) -> String {
    let Origin { build, binary_sha256, llama, backend, device, isa, threads } = origin;
    let entries: Vec<Value> = entries.iter().map(entry).collect();
    json!({
        "version": VERSION,
        "origin": {
            "build": build, "binary_sha256": binary_sha256, "llama": llama, "backend": backend, "device": device, "isa": isa,
            "threads": threads,
        },
        "entries": entries,
    })
    .to_string()
}

fn entry(measurement: &Measurement) -> Value {
    let Measurement { profile, switch, shape, parity_error, tolerance, speed_ratio } = measurement;
    let bits = |number: &f64| format!("{:016x}", number.to_bits());
    json!({
        "profile": profile, "switch": switch.name(),
        "shape": {"n_tokens": shape.n_tokens, "n_kv": shape.n_kv, "top_k": shape.top_k},
        "parity_error": bits(parity_error), "tolerance": bits(tolerance), "speed_ratio": bits(speed_ratio),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        package::generation::Switch,
        policy::{Backend, Profile, evidence::Shape},
    };

    #[test]
    fn the_canonical_form_is_the_documented_one() {
        let origin = Origin {
            build: "0.1.0 (abc)".into(),
            binary_sha256: "00ff".into(),
            llama: "l".into(),
            backend: Backend::Cpu,
            device: "A \"CPU\"".into(),
            isa: "avx2".into(),
            threads: 2,
        };
        let measurement = Measurement {
            profile: Profile::GlmDsaV1,
            switch: Switch::SelectedRowFlash,
            shape: Shape { n_tokens: 1, n_kv: 32768, top_k: 2048 },
            parity_error: 0.0,
            tolerance: 1e-4,
            speed_ratio: 1.5,
        };
        assert_eq!(
            canonical(&origin, &[measurement]),
            concat!(
                r#"{"version":2,"origin":{"build":"0.1.0 (abc)","binary_sha256":"00ff","llama":"l","backend":"cpu","#,
                r#""device":"A \"CPU\"","isa":"avx2","threads":2},"entries":[{"profile":"glm-dsa-v1","#,
                r#""switch":"selected_row_flash","shape":{"n_tokens":1,"n_kv":32768,"top_k":2048},"#,
                r#""parity_error":"0000000000000000","tolerance":"3f1a36e2eb1c432d","speed_ratio":"3ff8000000000000"}]}"#
            )
        );
    }
}
