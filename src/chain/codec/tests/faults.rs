//! One frame for everything that can be wrong with it.

use prost::Message as _;

use super::*;

type Change<T> = fn(&mut T);

fn step_message() -> pb::Step {
    step::to_message(step(), WireDtype::F32).unwrap()
}

fn decoded_step(message: pb::Step) -> Result<Down, FrameError> {
    let bytes = pb::Down { frame: Some(pb::down::Frame::Step(message)) }.encode_to_vec();
    decode_down(bytes.into(), &limits())
}

fn floats(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}

#[test]
fn steps_that_lie_are_refused_by_name() {
    let again = "each sequence once, its rows side by side and their positions one behind another";
    let lists = "ascending positions up to 3, then -1";
    let cases: &[(Change<pb::Step>, &str, &str, &str)] = &[
        (|s| s.rows[0].seq = 3, "step.rows[0].seq", "3", "a sequence of 0..3"),
        (|s| s.rows[2].seq = u32::MAX, "step.rows[2].seq", "4294967295", "a sequence of 0..3"),
        (|s| s.rows[2].seq = 2, "step.rows[2].seq", "2 again", again),
        (|s| s.rows[1].n = 0, "step.rows[1].n", "0", "at least 1"),
        (|s| s.rows[1].pos = 8, "step.rows[1].pos", "9 rows with those of the step", "at most 8"),
        (|s| s.rows[1].pos = u32::MAX, "step.rows[1].pos", "4294967296 rows with those of the step", "at most 8"),
        (|s| s.rows[2].n = u32::MAX, "step.rows[2].pos", "4294967295 rows with those of the step", "at most 8"),
        (|s| s.rows[2].n = 2, "step.rows", "5 rows", "at most 4"),
        (|s| s.rows.push(s.rows[0].clone()), "step.rows", "4 sequences", "at most 3"),
        (|s| s.rows.clear(), "step.rows", "empty", "at least 1 row"),
        (|s| s.rows[0].outputs = vec![0, 0].into(), "step.rows[0].outputs", "2 bytes", "1"),
        (
            |s| s.rows[0].outputs = vec![7].into(),
            "step.rows[0].outputs",
            "a byte 0x07 at the end",
            "no bits behind the last row",
        ),
        (|s| s.rows[0].n = 1, "step.rows[0].outputs", "a byte 0x02 at the end", "no bits behind the last row"),
        (|s| s.tokens.truncate(3), "step.tokens", "3 tokens", "4"),
        (|s| s.tokens[1] = 100, "step.tokens", "100", "a token of 0..100"),
        (|s| s.tokens[1] = u32::MAX, "step.tokens", "4294967295", "a token of 0..100"),
        (|s| s.hidden = s.hidden.slice(..28), "step.hidden", "28 bytes", "32"),
        (|s| s.hidden = s.hidden.slice(..31), "step.hidden", "31 bytes", "32"),
        (|s| s.hidden = Bytes::new(), "step.hidden", "0 bytes", "32"),
        (|s| s.hidden = floats(&[0.0, 1.0, f32::NAN, 0.0, 0.0, 0.0, 0.0, 0.0]), "step.hidden", "NaN", "finite numbers"),
        (
            |s| s.hidden = floats(&[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, f32::NEG_INFINITY]),
            "step.hidden",
            "-inf",
            "finite numbers",
        ),
        (|s| s.spans[2].seq = 0, "step.spans[2].seq", "0", "a sequence with rows in the step, once"),
        (|s| s.spans[1].seq = 9, "step.spans[1].seq", "9", "a sequence with rows in the step, once"),
        (|s| s.spans.push(s.spans[0]), "step.spans", "4 spans", "at most 3"),
        (|s| s.spans[0].purpose = None, "step.spans[0].purpose", "absent", "a value"),
        (|s| s.spans[0].purpose = Some(pb::span::Purpose::Decode(false)), "step.spans[0].purpose", "false", "true"),
        (|s| s.spans[0].path = 6, "step.spans[0].path", "6", "a value that this version knows"),
        (|s| top_k(s).width = 0, "step.top_k.width", "0", "1..=16384"),
        (|s| top_k(s).width = u32::MAX, "step.top_k.width", "4294967295", "1..=16384"),
        (|s| top_k(s).width = 4, "step.top_k.lists", "48 bytes", "64"),
        (|s| put(s, 0, [0, 2, 4]), "step.top_k.lists[0]", "[0, 2, 4]", lists),
        (|s| put(s, 0, [0, 2, 2]), "step.top_k.lists[0]", "[0, 2, 2]", lists),
        (|s| put(s, 0, [2, 0, 3]), "step.top_k.lists[0]", "[2, 0, 3]", lists),
        (|s| put(s, 0, [0, -1, 3]), "step.top_k.lists[0]", "[0, -1, 3]", lists),
        (|s| put(s, 0, [-2, 0, 3]), "step.top_k.lists[0]", "[-2, 0, 3]", lists),
        (|s| put(s, 0, [0, i32::MIN, -1]), "step.top_k.lists[0]", "[0, -2147483648, -1]", lists),
        (|s| put(s, 3, [0, 1, -1]), "step.top_k.lists[3]", "[0, 1, -1]", "ascending positions up to 0, then -1"),
    ];
    decoded_step(step_message()).unwrap();
    for (change, field, got, expected) in cases {
        let mut message = step_message();
        change(&mut message);
        assert_eq!(decoded_step(message).unwrap_err(), FrameError::new(*field, got, expected));
    }
}

fn top_k(step: &mut pb::Step) -> &mut pb::TopK {
    step.top_k.as_mut().unwrap()
}

fn put(step: &mut pb::Step, row: usize, list: [i32; 3]) {
    let mut lists = top_k(step).lists.to_vec();
    lists[row * 12..][..12].copy_from_slice(&list.map(i32::to_le_bytes).concat());
    top_k(step).lists = lists.into();
}

#[test]
fn openings_that_lie_are_refused_by_name() {
    fn sampling(opening: &mut pb::Opening) -> &mut pb::Sampling {
        opening.sampling.as_mut().unwrap()
    }
    fn grammar(opening: &mut pb::Opening, spec: pb::grammar::Spec) {
        opening.grammar = Some(pb::Grammar { spec: Some(spec) });
    }
    use pb::grammar::Spec;
    let cases: &[(Change<pb::Opening>, &str, &str)] = &[
        (|o| o.seq = 3, "open.seq", "3"),
        (|o| o.text = vec![0; 10], "open.text", "10 tokens"),
        (|o| o.text[2] = 100, "open.text", "100"),
        (|o| o.prompt = 4, "open.prompt", "4 tokens"),
        (|o| o.kv_rows = 9, "open.kv_rows", "9 rows"),
        (|o| o.logprobs = Some(256), "open.logprobs", "more"),
        (|o| o.sampling = None, "open.sampling", "absent"),
        (|o| sampling(o).bias_values.truncate(1), "open.sampling.bias_values", "1 entries"),
        (|o| sampling(o).bias_tokens = vec![0; 1025], "open.sampling.bias_tokens", "1025 entries"),
        (|o| sampling(o).bias_tokens[0] = 100, "open.sampling.bias_tokens", "100"),
        (|o| sampling(o).bias_values[0] = f32::NAN, "open.sampling.logit_bias", "out of range"),
        (|o| sampling(o).temperature = f32::NAN, "open.sampling.temperature", "out of range"),
        (|o| sampling(o).top_k = 1 << 31, "open.sampling.top_k", "2147483648"),
        (|o| sampling(o).dry_allowed_length = u32::MAX, "open.sampling.dry_allowed_length", "4294967295"),
        (|o| sampling(o).dry_penalty_last_n = -2, "open.sampling.dry_penalty_last_n", "out of range"),
        (
            |o| sampling(o).dry_sequence_breakers = vec!["a".into(); 17],
            "open.sampling.dry_sequence_breakers",
            "17 texts",
        ),
        (|o| o.grammar = Some(pb::Grammar { spec: None }), "open.grammar", "absent"),
        (|o| grammar(o, Spec::JsonObject(false)), "open.grammar.json_object", "false"),
        (|o| grammar(o, Spec::Lark("a".repeat((1 << 18) + 1))), "open.grammar.lark", "262145 bytes"),
        (
            |o| grammar(o, Spec::JsonSchema("{".into())),
            "open.grammar.json_schema",
            "EOF while parsing an object at line 1 column 1",
        ),
    ];
    for (change, field, got) in cases {
        let mut message = opening::to_message(opening());
        change(&mut message);
        let bytes = pb::Down { frame: Some(pb::down::Frame::Open(message)) }.encode_to_vec();
        let error = decode_down(bytes.into(), &limits()).unwrap_err();
        assert_eq!((error.field.as_str(), error.got.as_str()), (*field, *got));
    }
}

#[test]
fn other_frames_towards_the_output_are_refused_by_name() {
    use pb::down::Frame;
    let hello = |change: Change<pb::Hello>| {
        let mut hello = hello::to_message(hello());
        change(&mut hello);
        Some(Frame::Hello(hello))
    };
    let truncate = |seq, n_keep| Some(Frame::Truncate(pb::Truncate { seq, n_keep }));
    let copy = |from, to, n_rows| Some(Frame::Copy(pb::Copy { from, to, n_rows }));
    let cases = [
        (None, "frame", "absent"),
        (truncate(3, 0), "truncate.seq", "3"),
        (truncate(0, 9), "truncate.n_keep", "9 rows"),
        (copy(3, 0, 0), "copy.from", "3"),
        (copy(0, 3, 0), "copy.to", "3"),
        (copy(0, 1, 9), "copy.n_rows", "9 rows"),
        (hello(|h| h.wire = 0), "hello.wire", "0"),
        (hello(|h| h.wire = -1), "hello.wire", "-1"),
        (hello(|h| h.route = vec![String::new(); 65]), "hello.route", "65 stages"),
        (hello(|h| h.package_sha256 = "ab".into()), "hello.package_sha256", "`ab`"),
        (hello(|h| h.model_id = "a\nb".into()), "hello.model_id", "a text with '\\n'"),
        (hello(|h| h.abi = "a".repeat(513)), "hello.abi", "513 bytes"),
    ];
    for (frame, field, got) in cases {
        let error = decode_down(pb::Down { frame }.encode_to_vec().into(), &limits()).unwrap_err();
        assert_eq!((error.field.as_str(), error.got.as_str()), (field, got));
    }
}

#[test]
fn frames_towards_the_input_are_refused_by_name() {
    use pb::up::Frame;
    let done = |change: Change<pb::Report>| {
        let mut report = up::report_to_message(report());
        change(&mut report);
        Some(Frame::Done(report))
    };
    let welcome = |change: Change<Vec<pb::StageInfo>>| {
        let mut stages = vec![hello::info_to_message(info())];
        change(&mut stages);
        Some(Frame::Welcome(pb::Welcome { stages }))
    };
    let fault = |stage, code| Some(Frame::Fault(pb::Fault { stage, code, text: String::new() }));
    let cases = [
        (None, "frame", "absent"),
        (fault(0, 0), "fault.code", "0"),
        (fault(0, 8), "fault.code", "8"),
        (fault(65, 1), "fault.stage", "65 stages before it"),
        (welcome(Vec::clear), "welcome.stages", "empty"),
        (welcome(|s| *s = vec![s[0].clone(); 65]), "welcome.stages", "65 stages"),
        (welcome(|s| s[0].layer_start = 40), "welcome.stages[0]", "layers 40..40 of 40"),
        (welcome(|s| s[0].layer_end = 41), "welcome.stages[0]", "layers 20..41 of 40"),
        (welcome(|s| s[0].engine = "\u{7}".into()), "welcome.stages[0].engine", "a text with '\\u{7}'"),
        (done(|r| r.compute_us = vec![0; 65]), "done.compute_us", "65 stages"),
        (done(|r| r.outcomes[1].seq = 3), "done.outcomes[1].seq", "3"),
        (done(|r| r.outcomes[1].seq = 2), "done.outcomes[1].seq", "2 again"),
        (done(|r| r.outcomes = vec![r.outcomes[1].clone(); 4]), "done.outcomes", "4 sequences"),
        (done(|r| r.outcomes[0].chosen = vec![pb::Picked::default(); 4]), "done.outcomes", "5 tokens"),
        (done(|r| r.outcomes[0].chosen[0].id = 100), "done.outcomes[0].chosen", "100"),
        (done(|r| r.outcomes[0].draft = Some(u32::MAX)), "done.outcomes[0].draft", "4294967295"),
        (done(|r| r.outcomes[0].scored[0].top_ids[1] = 100), "done.outcomes[0].scored", "100"),
        (done(|r| r.outcomes[0].scored[0].top_ids = vec![0; 256]), "done.outcomes[0].scored", "256 alternatives"),
        (
            done(|r| r.outcomes[0].scored[0].top_logprobs.truncate(1)),
            "done.outcomes[0].scored",
            "1 log-probabilities of alternatives",
        ),
        (done(|r| r.outcomes[0].chosen[0].logprob = Some(f32::NAN)), "done.outcomes[0].chosen", "log-probability NaN"),
        (
            done(|r| r.outcomes[0].scored[0].top_logprobs[0] = f32::INFINITY),
            "done.outcomes[0].scored",
            "log-probability inf",
        ),
    ];
    for (frame, field, got) in cases {
        let error = decode_up(pb::Up { frame }.encode_to_vec().into(), &limits()).unwrap_err();
        assert_eq!((error.field.as_str(), error.got.as_str()), (field, got));
    }
}

#[test]
fn a_length_of_2_gib_allocates_nothing() {
    // Field 3 (step), then field 5 (hidden), each with 2^31 bytes announced.
    for bytes in [&[0x1a, 0x80, 0x80, 0x80, 0x80, 0x08][..], &[0x1a, 0x06, 0x2a, 0x80, 0x80, 0x80, 0x80, 0x08]] {
        let error = decode_down(Bytes::copy_from_slice(bytes), &limits()).unwrap_err();
        assert_eq!(error.field, "frame");
    }
    let large = Bytes::from(vec![0; limits().max_frame_bytes + 1]);
    let error = decode_down(large, &limits()).unwrap_err();
    assert_eq!(error.expected, format!("at most {}", limits().max_frame_bytes));
}

#[test]
fn without_a_vocabulary_ids_are_only_not_negative() {
    let limits = limits().with_vocabulary(0);
    let mut frame = step();
    frame.step.tokens[0] = i32::MAX - 1;
    decode_down(encode_down(Down::Step(frame.clone()), WireDtype::F32).unwrap(), &limits).unwrap();
    frame.step.tokens[0] = -1;
    let error = decode_down(encode_down(Down::Step(frame), WireDtype::F32).unwrap(), &limits).unwrap_err();
    assert_eq!(error.field, "step.tokens");
}

/// The seeds of the fuzzer are what their names say: `ok-` is let through, anything else is refused.
#[test]
fn the_seeds_of_the_fuzzer_are_what_they_say() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/frames");
    let mut sound = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let wire = if bytes[0] & 2 == 0 { WireDtype::F32 } else { WireDtype::F16 };
        let (limits, frame) = (limits().with_wire(wire), bytes.slice(1..));
        let error = if bytes[0] & 1 == 0 { decode_down(frame, &limits).err() } else { decode_up(frame, &limits).err() };
        let ok = path.file_name().unwrap().to_string_lossy().starts_with("ok-");
        assert_eq!(error.is_none(), ok, "{path:?}: {error:?}");
        sound += usize::from(ok);
    }
    assert_eq!(sound, 14);
}
