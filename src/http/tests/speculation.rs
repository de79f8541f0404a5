//! Speculation as clients see it: in `timings`, and nowhere else.

use super::*;

#[tokio::test]
async fn the_answer_is_the_same_but_for_its_timings() {
    let app = App::speculating();
    let bodies = [
        json!({"max_tokens": 30}),
        json!({"max_tokens": 30, "logprobs": 2, "echo": true}),
        json!({"max_tokens": 30, "temperature": 2, "seed": 5, "stop": ["e", "f"]}),
        json!({"max_tokens": 30, "n": 3, "temperature": 1, "seed": 5}),
    ];
    for body in bodies {
        let mut without = body.clone();
        without["speculative"] = false.into();
        let (with, without) = (app.complete(body).await.json(), app.complete(without).await.json());
        assert_eq!(with["choices"], without["choices"]);
        assert_eq!(with["usage"], without["usage"]);
    }
}

/// llama.cpp's names for both counts.
#[tokio::test]
async fn timings_count_drafts_only_where_there_are_any() {
    let app = App::speculating();
    let timings = app.complete(json!({"max_tokens": 30})).await.json()["timings"].clone();
    let count = |name: &str| timings[name].as_u64().unwrap();
    let (drafts, accepted, forwards) = (count("draft_n"), count("draft_n_accepted"), count("forwards"));
    assert_eq!(accepted, drafts - drafts / 3, "{timings}");
    // Every token but the first comes from a pass or from an accepted draft.
    assert_eq!(forwards + accepted, 29, "{timings}");
    for (app, body) in [(app, json!({"max_tokens": 30, "speculative": false})), (App::new(), json!({"max_tokens": 30}))]
    {
        let timings = app.complete(body).await.json()["timings"].clone();
        for name in ["draft_n", "draft_n_accepted", "forwards", "prefill_path", "decode_path", "fallback_reasons"] {
            assert!(timings.get(name).is_none(), "{timings}");
        }
    }
}

#[tokio::test]
async fn the_last_chunk_of_a_stream_has_the_same_timings() {
    let app = App::speculating();
    let whole = app.complete(json!({"max_tokens": 30})).await;
    let chunks = app.complete(json!({"max_tokens": 30, "stream": true})).await.chunks();
    let timings = &chunks.last().unwrap()["timings"];
    for name in ["draft_n", "draft_n_accepted", "forwards"] {
        assert_eq!(timings[name], whole.json()["timings"][name]);
    }
    assert_eq!(joined(&chunks, 0), whole.text());
}

#[tokio::test]
async fn timings_name_the_attention_paths() {
    use crate::policy::{Resolver, ResolverConfig};
    let text = FakeText::new();
    let resolver = Resolver::new(ResolverConfig { top_k: Some(5), ..ResolverConfig::default() });
    let engine = FakeEngine::new(&text, 4, 1024, 64).deciding(resolver);
    let app = App::with(engine, text, HttpOptions::default());
    let timings = app.complete(json!({})).await.json()["timings"].clone();
    assert_eq!(timings["prefill_path"], "dense");
    assert_eq!(timings["decode_path"], "dense,compact-flash");
    assert_eq!(timings["fallback_reasons"], json!([]));
    let timings = app.complete(json!({"max_tokens": 1})).await.json()["timings"].clone();
    assert_eq!(timings["decode_path"], "");
}
