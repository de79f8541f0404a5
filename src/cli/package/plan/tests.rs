use super::*;
use clap::Parser as _;

#[derive(clap::Parser)]
struct Tool {
    #[command(flatten)]
    args: Args,
}

const BUNDLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/skippy-kjv-6m");

fn planned(flags: &[&str]) -> (Args, anyhow::Result<Plan>) {
    let args = Tool::try_parse_from(["plan", BUNDLED].iter().chain(flags)).unwrap().args;
    let plan = plan_package(&Package::open(&args.package).unwrap(), &args.wish());
    (args, plan)
}

fn error(flags: &[&str]) -> anyhow::Error {
    planned(flags).1.err().unwrap()
}

#[test]
fn the_bundled_model_is_cut_anywhere_in_its_trunk_by_the_dsa_engine() {
    // Roles FFSSFFSS and an MTP block: seven cuts, of which 2, 3, 6 and 7 carry lists.
    for stages in 1..=8 {
        let (_, plan) = planned(&["--stages", &stages.to_string(), "--memory", "1GiB"]);
        let plan = plan.unwrap();
        assert_eq!((plan.stages.len(), plan.engine), (stages, PlanEngine::Dsa));
        for stage in &plan.stages {
            let shared = [2, 3, 6, 7].contains(&stage.layers.start());
            assert_eq!(stage.sideband, if shared { 64 * 4 } else { 0 }, "{}", stage.layers);
        }
    }
    assert!(error(&["--stages", "9"]).to_string().contains("at most 8 stages"));
    // llama.cpp computes no lists for others.
    let (_, plan) = planned(&["--stages", "4", "--engine", "llama"]);
    let starts: Vec<u32> = plan.unwrap().stages.iter().map(|stage| stage.layers.start()).collect();
    assert_eq!(starts, [0, 1, 4, 5]);
    assert!(error(&["--stages", "5", "--engine", "llama"]).to_string().contains("full-indexer layers"));
}

#[test]
fn stages_follow_the_machines() {
    let (_, plan) = planned(&["--memory", "1GiB,3GiB"]);
    let plan = plan.unwrap();
    assert_eq!(plan.stages.len(), 2);
    assert!(plan.stages[0].bytes.total() < plan.stages[1].bytes.total());
    let lacks = error(&["--memory", "64KiB,1GiB"]);
    assert!(matches!(lacks.downcast_ref(), Some(PlanError::DoesNotFit { .. })), "{lacks}");
    assert!(lacks.to_string().contains("stage 0 (layers 0..1) needs"), "{lacks}");
    let usage = error(&["--stages", "3", "--memory", "1GiB,1GiB"]);
    assert!(usage.is::<UsageError>() && usage.to_string().contains("2 values for 3 stages"), "{usage}");
    assert!(Tool::try_parse_from(["plan", BUNDLED]).is_err(), "neither stages nor memory");
}

#[test]
fn more_context_and_lanes_need_more_kv() {
    let kv = |flags: &[&str]| -> u64 {
        let (_, plan) = planned(&[&["--stages", "2"], flags].concat());
        plan.unwrap().stages.iter().map(|stage| stage.bytes.kv).sum()
    };
    let usual = kv(&["--ctx-size", "1024", "--lanes", "2"]);
    assert_eq!(kv(&["--ctx-size", "2048", "--lanes", "2"]), 2 * usual);
    assert_eq!(kv(&["--ctx-size", "1024", "--lanes", "6"]), 3 * usual);
    assert!(kv(&["--ctx-size", "1024", "--lanes", "2", "--cache-type-k", "q8_0"]) < usual);
}

#[test]
fn commands_start_the_output_end_first() {
    let flags = ["--stages", "3", "--ctx-size", "512", "--lanes", "2", "--cache-type-k", "q8_0", "--engine", "dsa"];
    let (mut args, plan) = planned(&flags);
    args.package = "the model".into();
    let plan = plan.unwrap();
    let [a, b] = [1, 2].map(|index: usize| plan.stages[index].layers.start());
    let tls = "--link-ca CA --link-cert CERT --link-key KEY --ctx-size 512 --lanes 2 --cache-type-k q8_0 --engine dsa";
    assert_eq!(
        show::commands(&args, &plan.stages),
        [
            format!("skippy-stage stage 'the model' --layers {b}..9 --bind 0.0.0.0:19000 {tls}"),
            format!(
                "skippy-stage stage 'the model' --layers {a}..{b} --bind 0.0.0.0:19000 --next https://HOST-C:19000 {tls}"
            ),
            format!("skippy-stage serve 'the model' --layers 0..{a} --next https://HOST-B:19000 {tls}"),
        ]
    );
    let (args, plan) = planned(&["--stages", "1"]);
    assert_eq!(show::commands(&args, &plan.unwrap().stages), [format!("skippy-stage serve {BUNDLED}")]);
}

#[test]
fn text_and_json_say_the_same() {
    let (args, plan) = planned(&["--stages", "3", "--memory", "2GiB"]);
    let (plan, package) = (plan.unwrap(), Package::open(&args.package).unwrap());
    let (text, json) = (show::text(&args, &plan), show::json(&args, &package, &args.wish(), &plan));
    assert_eq!((&json["engine"], &json["lanes"], &json["layer_count"]), (&"dsa".into(), &4.into(), &9.into()));
    assert_eq!(json["commands"].as_array().unwrap().len(), 3);
    let lines: Vec<&str> = text.lines().collect();
    for (index, stage) in json["stages"].as_array().unwrap().iter().enumerate() {
        let number = |key: &str| stage[key].as_u64().unwrap();
        assert_eq!(number("total_bytes"), number("tensor_bytes") + number("kv_bytes") + number("compute_bytes"));
        assert_eq!((number("memory_bytes"), number("stage")), (2 << 30, index as u64));
        assert_eq!(number("hidden_bytes_per_token"), if index == 0 { 0 } else { 160 * 4 });
        assert!((0.0..1.0).contains(&stage["fill"].as_f64().unwrap()));
        let range = format!(" {}..{} ", number("layer_start"), number("layer_end"));
        assert!(lines[index + 1].contains(&range) && lines[index + 1].contains("2.00 GiB ("), "{text}");
    }
    for command in json["commands"].as_array().unwrap() {
        assert!(text.contains(command.as_str().unwrap()), "{text}");
    }
    assert!(
        text.contains(&format!(
            "--split {}",
            json["cuts"].as_array().unwrap().iter().map(|cut| cut.to_string()).collect::<Vec<_>>().join(",")
        )),
        "{text}"
    );
}
