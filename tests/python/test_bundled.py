"""The model in `assets/`: served without network and without a copy of its weights, to the official OpenAI client."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import connect
from isolated import REQUEST
from server import BUNDLED, Server, counts, run_to_end

FRAGMENTS = {str(path) for path in pathlib.Path(BUNDLED).resolve().rglob("*.gguf")}


@pytest.fixture(scope="module")
def bundled():
    server = Server("--threads", "1", package=BUNDLED)
    yield server
    server.must_be_well()


@pytest.fixture(scope="module")
def bundled_client(bundled):
    return connect(bundled)


@pytest.fixture(scope="module")
def answer(bundled_client):
    model = bundled_client.models.list().data[0].id
    return bundled_client.completions.create(model=model, **REQUEST)


def test_models_tells_what_it_is(bundled_client):
    (model,) = bundled_client.models.list().data
    meta = model.model_extra["meta"]
    assert (meta["architecture"], meta["layer_count"], meta["n_ctx"]) == ("glm-dsa", 9, 1024)
    assert (meta["speculation"]["strategy"], meta["speculation"]["source"]) == ("mtp", "package")


def test_completion(answer):
    (choice,) = answer.choices
    assert choice.finish_reason == "length" and answer.usage.completion_tokens == 24
    # English, or close to it.
    assert len(re.findall(r"\b(?:a|and|he|in|of|that|the|to|unto|was)\b", choice.text)) >= 6, choice.text
    timings = answer.model_extra["timings"]
    assert timings["draft_n_accepted"] > 0 and timings["forwards"] < 23


def test_stream(bundled_client, answer):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = bundled_client.completions.create(model=answer.model, **REQUEST, **options)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert counts(last.usage) == counts(answer.usage)
    # The last chunk of the choice tells how it went, as the whole answer does.
    told, whole = (it.model_extra["timings"] for it in (chunks[-1], answer))
    for field in ("draft_n", "draft_n_accepted", "forwards", "prefill_path", "decode_path", "fallback_reasons"):
        assert told[field] == whole[field]


def test_several_choices_and_seeds(bundled_client, answer):
    sample = {**REQUEST, "temperature": 0.9, "seed": 11, "n": 3}
    first, second = (bundled_client.completions.create(model=answer.model, **sample) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.text for choice in second.choices]


def test_check_names_its_layers_and_strategy():
    code, out, err = run_to_end(BUNDLED, "--check", "--verify-package-sha")
    assert (code, out) == (0, "layers 0..9 of 0..9: ok\nspeculative strategy mtp: ok\n"), err


def test_it_needs_no_network(answer):
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", "--net", *as_root, "--"]
    try:
        tried = subprocess.run([*unshare, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no `unshare` to take the network away with")
    if tried.returncode != 0:
        pytest.skip(f"network namespaces are not allowed here: {tried.stderr.strip()}")
    script = pathlib.Path(__file__).with_name("isolated.py")
    done = subprocess.run([*unshare, sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == answer.choices[0].text


def maps(server):
    """Files that the server has mapped."""
    text = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
    return {line[5] for line in (line.split(maxsplit=5) for line in text.splitlines()) if len(line) == 6}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_weights_stay_in_their_files(bundled, answer):
    layers = {path for path in FRAGMENTS if "/layers/" in path}
    assert len(layers) == 9
    assert layers <= maps(bundled)
    # The other engine copies them into buffers of its own and lets go of the files: the check can fail.
    copying = Server("--threads", "1", "--engine", "llama", package=BUNDLED)
    try:
        assert not layers & maps(copying)
    finally:
        copying.kill()
