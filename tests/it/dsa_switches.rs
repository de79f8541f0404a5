//! Experimental switches of the `dsa` engine: other graphs, the same results.

use crate::support::{
    TestPackage,
    dsa::{self, LAYERS, Reference},
};
use skippy_stage::{
    llama::KvType,
    policy::Path,
    stage::{
        Purpose,
        dsa::{DsaStage, DsaStageOptions, Switches},
    },
};

/// As against the reference with all switches closed.
const TOLERANCE: f32 = 1e-4;
/// Tokens of the prompt, of which a pass of many rows reads all; single tokens follow.
const PROMPT: usize = 150;
const CLOSED: Switches =
    Switches { selected_row_flash: false, moe_weighted_down: false, moe_merged_shared_gate_up: false };

fn stage(package: &TestPackage, cache_type: KvType, switches: Switches) -> DsaStage {
    let options = DsaStageOptions { n_ctx_seq: 256, n_batch: 256, n_seq_max: 1, cache_type, drafts: None, switches };
    dsa::load(package, 0, LAYERS, &options).unwrap()
}

/// Logits of the prompt and of single tokens behind it, and the operations of the graphs of both.
struct Ran {
    prompt: Vec<f32>,
    prompt_operations: usize,
    single: Vec<f32>,
    single_operations: usize,
}

fn run(stage: &mut DsaStage, ids: &[i32], path: Path) -> Ran {
    let purpose = Purpose::Prefill { prompt: PROMPT as u32 };
    let prompt = dsa::logits(stage, 0, 0, &ids[..PROMPT], purpose, Some(path));
    let prompt_operations = stage.operations();
    let one = |pos: usize| dsa::logits(stage, 0, pos as u32, &ids[pos..=pos], Purpose::Decode, Some(path));
    let single = (PROMPT..ids.len()).flat_map(one).collect();
    Ran { prompt, prompt_operations, single, single_operations: stage.operations() }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn off_by(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn each_switch_changes_its_graph_and_no_result() {
    let (package, reference) = (dsa::package(), Reference::open());
    let (ids, full) = (reference.i32("ids_200"), reference.f32("full_200"));
    let (prompt, single) = full.split_at(PROMPT * 512);
    let with = |switches| {
        let ran = run(&mut stage(&package, KvType::F32, switches), &ids, Path::CompactFlash);
        for (got, expected) in [(&ran.prompt, prompt), (&ran.single, single)] {
            let off = off_by(got, expected);
            assert!(off <= TOLERANCE, "{switches:?}: off by {off}");
        }
        ran
    };
    let closed = with(CLOSED);

    // Nothing is gathered, in either graph.
    let flash = with(Switches { selected_row_flash: true, ..CLOSED });
    assert!(flash.prompt_operations < closed.prompt_operations);
    assert!(flash.single_operations < closed.single_operations);

    // Products are rounded elsewhere; few rows have one kernel for it anyway.
    let weighted = with(Switches { moe_weighted_down: true, ..CLOSED });
    assert_eq!(weighted.prompt_operations, closed.prompt_operations);
    assert_ne!(bits(&weighted.prompt), bits(&closed.prompt));
    assert_eq!(weighted.single_operations, closed.single_operations);

    // Gate, up and the product of both are one operation.
    let merged = with(Switches { moe_merged_shared_gate_up: true, ..CLOSED });
    assert!(merged.prompt_operations < closed.prompt_operations);
    assert_eq!(merged.single_operations, closed.single_operations);

    let all = with(Switches { selected_row_flash: true, moe_weighted_down: true, moe_merged_shared_gate_up: true });
    assert!(all.prompt_operations < merged.prompt_operations.min(flash.prompt_operations));
}

/// Where decoding and verifying take different ones of these paths, a greedy answer must not depend on it.
#[test]
fn gathering_does_not_change_the_bits_of_few_rows() {
    let (package, reference) = (dsa::package(), Reference::open());
    let ids = reference.i32("ids_200");
    for cache in [KvType::F32, KvType::F16] {
        let of = |path| {
            let mut stage = stage(&package, cache, CLOSED);
            let purpose = Purpose::Prefill { prompt: PROMPT as u32 };
            dsa::logits(&mut stage, 0, 0, &ids[..PROMPT], purpose, Some(Path::SparseChunked));
            let mut rows =
                dsa::logits(&mut stage, 0, PROMPT as u32, &ids[PROMPT..=PROMPT], Purpose::Decode, Some(path));
            let window = &ids[PROMPT + 1..PROMPT + 5];
            rows.extend(dsa::logits(&mut stage, 0, PROMPT as u32 + 1, window, Purpose::Verify, Some(path)));
            bits(&rows)
        };
        assert_eq!(of(Path::CompactFlash), of(Path::DirectSparse), "{cache:?}");
    }
}
