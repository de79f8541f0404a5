"""How attention runs on the bundled model, and whether log, metrics and answer tell of it alike.

Its top-k is 64, prompts of more than 128 tokens are long, and a dense mask may take 256 KiB, which is 256 x 256 rows.
"""

import json
import re
from collections import Counter

import pytest
from server import ASSETS, BIN, BUNDLED, Server, run, samples

TOP_K, SHORT_PREFILL_MAX, MASK_BUDGET = 64, 128, 262144
PATHS = ("dense", "direct-sparse", "compact-flash", "sparse-chunked", "fallback")
PREFILL, DECODE = ("short_prefill", "long_prefill"), ("decode", "verify")
PROMPTS = json.loads((ASSETS / "prompts.json").read_text())
DECISIONS, AVOIDED = "skippy_policy_decisions_total", "skippy_policy_dense_mask_avoided_bytes_total"
LABELS = ("profile", "phase", "recommended", "selected", "reason")
# What an event says beside its decision.
EVENT = {"message": "attention path", "target": "skippy::policy", "profile": "glm-dsa-v1", "backend": "cpu",
         "top_k": TOP_K, "indexshare_role": "full", "refused": False}


def start(*args, log="info,skippy::policy=debug"):
    env = {"RUST_LOG": log} if log else None
    # Every prompt is read anew: what an earlier one left would stand in for its beginning.
    return Server("--lanes", "2", "--threads", "1", "--log-format", "json", "--prefix-cache-mib", "0", *args,
                  package=BUNDLED, env=env)


@pytest.fixture(scope="module")
def bundled():
    server = start()
    yield server
    server.must_be_well()


@pytest.fixture
def started():
    """Starts servers that end with the test."""
    servers = []

    def start_one(*args, **options):
        servers.append(start(*args, **options))
        return servers[-1]

    yield start_one
    for server in servers:
        server.kill()


@pytest.fixture(scope="module")
def tokens(bundled):
    """Token ids of running text, as many as fit into a context."""
    status, body = bundled.post("/tokenize", {"content": "\n".join(sorted(PROMPTS, key=len, reverse=True))})
    assert status == 200
    return body["tokens"][:1024]


def events_of(lines):
    """The events of the resolver, and the last line."""
    parsed = [json.loads(line) for line in lines]
    events = [line for line in parsed if line["target"] == "skippy::policy"]
    dropped = ("timestamp", "level")
    return [{key: value for key, value in event.items() if key not in dropped} for event in events], parsed[-1]


def counters(server, name, *labels):
    """Every series of a counter that is above zero, by the values of its labels."""
    found = samples(server.get("/metrics")[1])
    return Counter({tuple(at[label] for label in labels): value for key, at, value in found if key == name and value})


def once(values):
    return list(dict.fromkeys(values))


class Observed:
    """One greedy completion, and what the log and the metrics say about it."""

    def __init__(self, server, prompt, max_tokens=8, **fields):
        logged, counted, avoided = len(server.log), self._decisions(server), self._avoided(server)
        request = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}
        status, answer = server.post("/v1/completions", request)
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] == max_tokens
        self.text, self.timings = answer["choices"][0]["text"], answer["timings"]
        lines = server.log_until(lambda line: '"request finished"' in line, logged)
        self.events, self.finished = events_of(lines)
        self.prefill = [event for event in self.events if event["phase"] in PREFILL]
        self.decode = [event for event in self.events if event["phase"] in DECODE]
        self.counted = self._decisions(server) - counted
        self.avoided = self._avoided(server) - avoided

    @staticmethod
    def _decisions(server):
        return counters(server, DECISIONS, *LABELS)

    @staticmethod
    def _avoided(server):
        return counters(server, AVOIDED, "phase")

    def tells_one_story(self):
        """Log, metrics and answer agree."""
        assert self.counted == Counter(tuple(event[label] for label in LABELS) for event in self.events)
        avoided = Counter()
        for event in self.events:
            avoided[event["phase"],] += event["dense_mask_avoided_bytes"]
        assert self.avoided == +avoided
        told = [",".join(once(event["selected"] for event in events)) for events in (self.prefill, self.decode)]
        assert [self.timings["prefill_path"], self.timings["decode_path"]] == told
        assert [self.finished["prefill_path"], self.finished["decode_path"]] == told
        assert self.finished.get("fallback_reasons", "") == ",".join(self.timings["fallback_reasons"])
        # Whatever was asked for and not taken has its reason in the answer.
        rejected = {event["reason"] for event in self.events if "rejected" in event and event["recommended"] != "auto"}
        assert rejected <= set(self.timings["fallback_reasons"]) <= {event["reason"] for event in self.events}
        return self


# -- prompts around the thresholds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [TOP_K, TOP_K + 1, 127, 128, 129, 200])
def test_a_prompt_goes_by_its_length(bundled, tokens, n):
    seen = Observed(bundled, tokens[:n]).tells_one_story()
    short, covered, mask = n <= SHORT_PREFILL_MAX, n <= TOP_K, 4 * n * n
    phase, path = ("short_prefill", "dense") if short else ("long_prefill", "sparse-chunked")
    reason = {"reason": "top_k_covers_kv"}
    if not covered:
        reason = {
            "reason": "recommended", "threshold": "short_prefill_max_tokens", "threshold_value": SHORT_PREFILL_MAX,
        }
    assert seen.prefill == [{
        **EVENT, **reason, "phase": phase, "n_tokens": n, "n_kv": n, "recommended": path, "selected": path,
        "dense_mask_bytes": mask, "dense_mask_avoided_bytes": 0 if short else mask,
    }]
    assert seen.counted["glm-dsa-v1", phase, path, path, reason["reason"]] == 1
    assert seen.timings["prefill_path"] == path
    assert seen.timings["fallback_reasons"] == []


def test_dense_beyond_the_mask_budget_gives_way(bundled, tokens):
    at_budget = Observed(bundled, tokens[:256], attention_path="dense").tells_one_story()
    assert (at_budget.timings["prefill_path"], at_budget.timings["fallback_reasons"]) == ("dense", ["override"])
    assert at_budget.prefill[0]["dense_mask_bytes"] == MASK_BUDGET

    beyond = Observed(bundled, tokens[:257], attention_path="dense").tells_one_story()
    assert beyond.prefill == [{
        **EVENT, "phase": "long_prefill", "n_tokens": 257, "n_kv": 257, "recommended": "sparse-chunked",
        "selected": "sparse-chunked", "rejected": "dense", "reason": "dense_mask_over_budget",
        "threshold": "dense_mask_max_bytes", "threshold_value": MASK_BUDGET,
        "dense_mask_bytes": 4 * 257 * 257, "dense_mask_avoided_bytes": 4 * 257 * 257,
    }]
    series = ("glm-dsa-v1", "long_prefill", "sparse-chunked", "sparse-chunked", "dense_mask_over_budget")
    assert beyond.counted[series] == 1
    assert beyond.avoided["long_prefill",] == 4 * 257 * 257
    assert beyond.timings["prefill_path"] == "sparse-chunked"
    assert beyond.timings["fallback_reasons"] == ["dense_mask_over_budget", "override"]
    # Its single tokens need a small mask only.
    assert beyond.timings["decode_path"] == "dense"


def test_the_budget_counts_for_each_piece_of_a_prompt(started, tokens):
    server = started("--batch-size", "512")
    n = 540
    seen = Observed(server, tokens[:n], attention_path="dense").tells_one_story()
    # How a prompt is cut is the server's affair; a short piece at its end there is in any case.
    pieces = [(event["n_tokens"], event["n_kv"]) for event in seen.prefill]
    assert len(pieces) > 1 and sum(rows for rows, _ in pieces) == pieces[-1][1] == n
    over = [4 * rows * kv > MASK_BUDGET for rows, kv in pieces]
    assert over[0] and not over[-1]
    verdicts = {True: ("sparse-chunked", "dense_mask_over_budget"), False: ("dense", "override")}
    assert [(event["selected"], event["reason"]) for event in seen.prefill] == [verdicts[it] for it in over]
    assert seen.timings["prefill_path"] == "sparse-chunked,dense"
    # Nobody asked for dense: nothing departs, and no mask is allocated at all.
    seen = Observed(server, tokens[:n]).tells_one_story()
    assert seen.timings["prefill_path"] == "sparse-chunked" and seen.timings["fallback_reasons"] == []
    assert seen.avoided["long_prefill",] == 4 * sum(event["n_tokens"] * event["n_kv"] for event in seen.prefill)


def test_single_tokens_are_sparse_once_top_k_does_not_cover_them(bundled, tokens):
    seen = Observed(bundled, tokens[:60], max_tokens=9, speculative=False).tells_one_story()
    assert [(event["n_kv"], event["selected"], event["reason"]) for event in seen.decode] == [
        *[(n, "dense", "top_k_covers_kv") for n in range(61, 65)],
        *[(n, "compact-flash", "recommended") for n in range(65, 69)],
    ]
    assert seen.timings["decode_path"] == "dense,compact-flash"
    assert seen.timings["fallback_reasons"] == ["top_k_covers_kv"]


# -- who decides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_request_may_force_every_path(bundled, tokens, path):
    seen = Observed(bundled, tokens[:100], attention_path=path).tells_one_story()
    assert {event["selected"] for event in seen.events} == {path}
    assert {event["reason"] for event in seen.events} == {"override"}
    assert seen.timings["prefill_path"] == seen.timings["decode_path"] == path
    assert seen.timings["fallback_reasons"] == ["override"]


def test_every_path_says_the_same(bundled):
    # Each path adds up in an order of its own, so that two tokens which are tied to the last bits may turn out otherwise,
    # and all that follows with them. Within the first 24 tokens of these prompts none are.
    for prompt in [*PROMPTS[:40:8], *PROMPTS[40::4]]:
        expected = Observed(bundled, prompt, max_tokens=24).text
        for path in PATHS:
            assert Observed(bundled, prompt, max_tokens=24, attention_path=path).text == expected, path


def test_a_path_forced_for_the_process_shows_everywhere(started, tokens):
    server = started("--attention-decode", "fallback", "--attention-long-prefill", "dense")
    seen = Observed(server, tokens[:300], speculative=False).tells_one_story()
    assert seen.timings["decode_path"] == "fallback"
    assert seen.timings["fallback_reasons"] == ["dense_mask_over_budget", "override"]
    assert {event["reason"] for event in seen.decode} == {"override"}
    assert seen.counted["glm-dsa-v1", "decode", "compact-flash", "fallback", "override"] == len(seen.decode) == 7
    # A request has the last word.
    seen = Observed(server, tokens[:300], speculative=False, attention_path="compact-flash").tells_one_story()
    assert seen.timings["decode_path"] == seen.timings["prefill_path"] == "compact-flash"

    status, page = server.get("/v1/policy")
    assert status == 200
    phases = json.loads(page)["phases"]
    assert {phase["phase"]: (phase["configured_override"], phase["decided_by"]) for phase in phases} == {
        "decode": ("fallback", "configuration"), "short_prefill": (None, "package"),
        "long_prefill": ("dense", "configuration"), "verify": (None, "auto"),
    }
    explained = explain(server, phase="decode", n_tokens=1, n_kv=500)
    assert (explained["selected"], explained["reason"]) == ("fallback", "override")
    assert explained["configured_override"] == "fallback"


def test_a_departure_is_logged_once_without_being_asked_for(started, tokens):
    server = started(log=None)
    for _ in range(2):
        Observed(server, tokens[:300], attention_path="dense")
    events = [json.loads(line) for line in server.log if '"skippy::policy"' in line]
    assert {event["level"] for event in events} == {"INFO"}
    assert [(event["phase"], event["reason"]) for event in events] == once(
        (event["phase"], event["reason"]) for event in events
    )
    assert ("long_prefill", "dense_mask_over_budget") in [(event["phase"], event["reason"]) for event in events]


def test_an_engine_without_a_choice_refuses_one(started):
    server = started("--engine", "llama")
    status, body = server.post("/v1/completions", {"prompt": "And", "max_tokens": 4, "attention_path": "dense"})
    assert (status, body["error"]["param"]) == (400, "attention_path")
    status, body = server.post("/v1/completions", {"prompt": "And", "max_tokens": 4, "temperature": 0})
    assert status == 200
    assert not {"prefill_path", "decode_path", "fallback_reasons"} & body["timings"].keys()
    assert json.loads(server.get("/v1/policy")[1])["fixed_by_engine"] is True
    assert counters(server, DECISIONS, *LABELS) == Counter()


# -- explanations ------------------------------------------------------------------------------------------------------


def explain(server, **question):
    status, body = server.post("/v1/policy/explain", question)
    assert status == 200, body
    return body


QUESTIONS = [
    ("decode", 1, 64, None, "cpu"), ("decode", 1, 65, None, "cpu"), ("decode", 1, 900, "direct-sparse", "cpu"),
    ("decode", 1, 900, "direct-sparse", "cuda"), ("prefill", 128, 128, None, "cpu"), ("prefill", 129, 129, None, "cpu"),
    ("long_prefill", 512, 512, "dense", "cpu"), ("long_prefill", 88, 600, "dense", "metal"),
    ("verify", 2, 700, None, "cpu"), ("short_prefill", 100, 900, "fallback", "vulkan"),
]


@pytest.mark.parametrize(("phase", "n_tokens", "n_kv", "path", "backend"), QUESTIONS)
def test_resolve_and_explain_give_one_answer(bundled, phase, n_tokens, n_kv, path, backend):
    args = ["--phase", phase, "--n-tokens", str(n_tokens), "--n-kv", str(n_kv), "--backend", backend]
    args += ["--path", path] if path else []
    code, out, err = run(BIN, "resolve", "--package", BUNDLED, *args, "--json")
    assert code == 0, err
    answer = explain(bundled, phase=phase, n_tokens=n_tokens, n_kv=n_kv, path=path, backend=backend)
    assert json.loads(out) == answer
    code, words, _ = run(BIN, "resolve", "--package", BUNDLED, *args)
    assert code == 0 and re.search(rf"\b{answer['selected']}\b", words)


@pytest.mark.parametrize("path", [None, "dense"])
def test_what_is_done_is_what_explain_says(bundled, tokens, path):
    for n in (100, 600):
        for event in Observed(bundled, tokens[:n], attention_path=path).events:
            answer = explain(bundled, phase=event["phase"], n_tokens=event["n_tokens"], n_kv=event["n_kv"], path=path)
            same = event.keys() & answer.keys() - {"thresholds"}
            assert {*LABELS, "backend", "top_k", "indexshare_role", "refused", "dense_mask_avoided_bytes"} <= same
            assert {field: answer[field] for field in same} == {field: event[field] for field in same}
            assert answer["rejected"] == event.get("rejected")
            assert answer["selected_threshold"] == event.get("threshold")


def test_explaining_counts_and_logs_nothing(bundled):
    before, logged = counters(bundled, DECISIONS, *LABELS), len(bundled.log)
    explain(bundled, phase="decode", n_tokens=1, n_kv=500, path="fallback")
    lines = bundled.log_until(lambda line: "/v1/policy/explain" in line, logged)
    assert events_of(lines)[0] == []
    assert counters(bundled, DECISIONS, *LABELS) == before


# -- speculation and IndexShare ----------------------------------------------------------------------------------------


def test_drafts_are_counted_as_the_answer_tells(bundled):
    names = {name: f"skippy_speculation_{name}_total" for name in ("drafts", "accepted", "forwards", "tokens")}

    def read():
        return {name: bundled.metric(metric) for name, metric in names.items()}

    def moved(**fields):
        before = read()
        seen = Observed(bundled, PROMPTS[-1], max_tokens=40, **fields).tells_one_story()
        return seen, {name: value - before[name] for name, value in read().items()}

    seen, counts = moved()
    told = [seen.timings[name] for name in ("draft_n", "draft_n_accepted", "forwards")]
    assert [counts["drafts"], counts["accepted"], counts["forwards"]] == told
    assert counts["tokens"] == 39 == counts["forwards"] + counts["accepted"]
    assert counts["accepted"] > 0
    assert sum(event["phase"] == "verify" for event in seen.events) == counts["drafts"]
    assert seen.finished["strategy"] == "mtp"

    plain, counts = moved(speculative=False)
    assert set(counts.values()) == {0}
    assert "draft_n" not in plain.timings
    assert {event["phase"] for event in plain.decode} == {"decode"}
    assert plain.text == seen.text


@pytest.mark.parametrize(("split", "lists"), [("2,6", 2), ("3", 1), ("1,4", 0)])
def test_lists_cross_boundaries_before_shared_layers_only(bundled, started, tokens, split, lists):
    # Layers 2, 3, 6 and 7 share the list of a layer before them.
    server = started("--split", split)
    n, generated = 300, 8
    request = {"prompt": tokens[:n], "max_tokens": generated, "temperature": 0, "ignore_eos": True}
    request["speculative"] = False
    status, answer = server.post("/v1/completions", request)
    assert status == 200
    assert answer["choices"] == bundled.post("/v1/completions", request)[1]["choices"]
    # One list of top-k positions of four bytes for each row. The last token never becomes a row.
    expected = lists * (n + generated - 1) * TOP_K * 4
    assert {way: server.metric("skippy_indexshare_sideband_bytes_total", direction=way) for way in ("in", "out")} \
        == {"in": expected, "out": expected}
    # Each stage decides for itself, and says what it is.
    roles = [event["indexshare_role"] for event in events_of(server.log)[0] if event["phase"] == "long_prefill"]
    assert Counter(roles) == +Counter({"shared": lists, "full": len(split.split(",")) + 1 - lists})
