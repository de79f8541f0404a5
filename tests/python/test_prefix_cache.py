"""What the server keeps of earlier prompts: it saves work, and changes no answer."""

import json

import pytest
from ledger import ENDLESS
from raw import COMPLETIONS, Raw
from server import ASSETS, BUNDLED, PACKAGE, Server

# Long enough for whole pieces of it to be kept.
TEXT = " ".join(json.loads((ASSETS / "prompts.json").read_text())[26:39])
SETTINGS = {
    "bundled": ["--cache-type-k", "f32", "--cache-type-v", "f32"],
    "without drafts": ["--speculative-strategy", "disabled"],
    "in stages": ["--split", "3,6"],
    "by llama.cpp": ["--engine", "llama"],
    "smollm2": [],
}


@pytest.fixture(scope="module", params=list(SETTINGS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def server(kind):
    package = PACKAGE if kind == "smollm2" else BUNDLED
    settings = ["--lanes", "2", "--ctx-size", "1024", "--threads", "1", *SETTINGS[kind]]
    server = Server(*settings, package=package)
    yield server
    server.must_be_well()


def ask(server, prompt, **more):
    request = {"prompt": prompt, "temperature": 0, "max_tokens": 12, **more}
    status, answer = server.post(COMPLETIONS, request)
    assert status == 200, answer
    usage = answer["usage"]
    return answer["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def counted(server):
    names = {"lookups": "skippy_prefix_cache_lookups_total", "hits": "skippy_prefix_cache_hits_total"}
    counts = {name: server.metric(metric) for name, metric in names.items()}
    return {**counts, "cached": server.metric("skippy_prompt_tokens_total", source="cached")}


def test_llama_cpp_21762_vllm_54490_the_same_prompt_again(server):
    prompt = TEXT[:900]
    cold, cached, n = ask(server, prompt, cache_prompt=False)
    assert cached == 0
    first, _, _ = ask(server, prompt)
    before = counted(server)
    hot, cached, _ = ask(server, prompt)
    after = counted(server)
    assert first == cold and hot == cold
    # Something is kept, and at least one token is computed again.
    assert 0 < cached < n
    assert after["cached"] - before["cached"] == cached
    assert after["hits"] == before["hits"] + 1 and after["lookups"] == before["lookups"] + 1
    # Who does not want it does not get it.
    assert ask(server, prompt, cache_prompt=False) == (cold, 0, n)


def test_prompts_that_part_ways(server):
    shared = TEXT[:700]
    tails = [" Behold, the king", " Now the sons of", " And the waters were", " Therefore thus saith"]
    cold = [ask(server, shared + tail, cache_prompt=False)[0] for tail in tails]
    hot = [ask(server, shared + tail) for tail in tails]
    assert [text for text, _, _ in hot] == cold
    assert all(cached > 0 for _, cached, _ in hot[1:])


def test_conversation_that_grows(server):
    # The answer becomes part of the next prompt, and the cache may hold it from the time when it was generated.
    text = TEXT[:400]
    for _ in range(3):
        cold = ask(server, text, cache_prompt=False)[0]
        hot = ask(server, text)[0]
        assert hot == cold
        text += hot + " And it came to pass, that"


def test_mesh_llm_661_a_full_cache_makes_room(server, kind):
    # Prompts without a common beginning fill whatever there is to fill; then every lane runs to the end of its context.
    for i in range(8 if kind != "smollm2" else 2):
        assert ask(server, f"{i} {TEXT[i * 50:]}"[:700], max_tokens=1)[0] is not None
    budget = 1024 if kind != "smollm2" else 64
    streams = [Raw(server).post({**ENDLESS, "max_tokens": budget}) for _ in range(2)]
    for stream in streams:
        assert stream.read_head() == 200
        assert b'"finish_reason":"length"' in stream.read_until(b"data: [DONE]\n\n")
        stream.leave()
    server.wait_until(lambda: server.metric("skippy_lanes_busy") == 0, "idle")
