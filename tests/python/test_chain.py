"""Stages over loopback: the same text as one process, whatever the cuts; and what clients see when a stage is lost."""

import json
import signal
import threading

import openai
import pytest
from chain import Chain, Line, Worker
from conftest import connect
from raw import COMPLETIONS
from server import ASSETS, BUNDLED, PACKAGE, PATIENCE_S, Server, command, run
from test_neighbours import PROMPTS, ask, at_once

LAYERS = {"bundled": 9, "smollm2": 30}
COMMON = ["--lanes", "8", "--ctx-size", "512", "--threads", "1"]
EXACT = ["--cache-type-k", "f32", "--cache-type-v", "f32"]
STORY = json.loads((ASSETS / "prompts.json").read_text())


def said(server, prompt, n=24, **more):
    return ask(server, prompt, max_tokens=n, **more)["choices"][0]["text"]


@pytest.fixture(scope="module")
def whole():
    """The bundled model in one process."""
    server = Server(*COMMON, *EXACT, package=BUNDLED)
    yield server
    server.must_be_well()


CUTS = {"2 stages": [4], "2 stages, cut at a shared layer": [3], "3 stages": [2, 5], "7 stages": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
def test_the_bundled_model_says_the_same_in_stages(whole, cuts):
    prompts = STORY[:20]
    alone = [said(whole, prompt) for prompt in prompts]
    with Chain(cuts, LAYERS["bundled"], *COMMON, *EXACT) as chain:
        assert [said(chain.head, prompt) for prompt in prompts] == alone
        for first in (0, 8, 12):
            eight = slice(first, first + 8)
            assert at_once(lambda prompt: said(chain.head, prompt), prompts[eight]) == alone[eight]
        # With the model's own draft head, which sits at the end of the chain, and by the seed as well.
        answer = ask(chain.head, prompts[0], max_tokens=40)
        assert answer["timings"]["draft_n"] > 0
        drawn = {"temperature": 0.9, "seed": 11, "logprobs": 2}
        assert ask(chain.head, prompts[1], **drawn)["choices"] == ask(whole, prompts[1], **drawn)["choices"]
        for end in [chain.head, *chain.workers]:
            assert end.metric("skippy_link_frames_total", direction="out") > 0
            assert end.metric("skippy_link_up") >= 1
            assert end.metric("skippy_stage_busy_seconds_sum") > 0


def test_smollm2_says_the_same_in_three_stages():
    prompts = PROMPTS["smollm2"] + STORY[:4]
    server = Server(*COMMON, package=PACKAGE)
    alone = [said(server, prompt) for prompt in prompts]
    server.must_be_well()
    with Chain([10, 20], LAYERS["smollm2"], *COMMON, package=PACKAGE) as chain:
        assert [said(chain.head, prompt) for prompt in prompts] == alone
        for first in (0, 8, 12):
            eight = slice(first, first + 8)
            assert at_once(lambda prompt: said(chain.head, prompt), prompts[eight]) == alone[eight]


def test_everything_a_request_may_ask_for_works_at_the_end_of_a_chain(whole):
    schema = {"type": "object", "properties": {"verse": {"type": "integer"}}, "required": ["verse"],
              "additionalProperties": False}
    requests = [
        {"prompt": STORY[0], "logprobs": 3, "echo": True, "max_tokens": 8},
        {"prompt": STORY[1], "stop": ["the", ","], "max_tokens": 60},
        {"prompt": STORY[2], "n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 12},
        {"prompt": STORY[3], "repetition_penalty": 1.3, "frequency_penalty": 0.5, "max_tokens": 24},
        {"prompt": STORY[4], "response_format": {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}},
         "max_tokens": 64},
        {"prompt": STORY[5], "temperature": 1.0, "seed": 3, "top_p": 0.9, "top_k": 40, "min_p": 0.01,
         "xtc_probability": 0.5, "xtc_threshold": 0.05, "max_tokens": 24},
    ]
    with Chain([2, 5], LAYERS["bundled"], *COMMON, *EXACT) as chain:
        for request in requests:
            assert ask(chain.head, **request)["choices"] == ask(whole, **request)["choices"], request
        # Reused beginnings are copied on every stage.
        long = " ".join(STORY)[:900]
        first, again = (ask(chain.head, long, max_tokens=8) for _ in range(2))
        assert first["choices"] == again["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_the_chain_is_told(whole):
    with Chain([2, 5], LAYERS["bundled"], *COMMON, *EXACT) as chain:
        status, text = chain.head.get("/v1/chain")
        view = json.loads(text)
        assert status == 200 and view["status"] == "ok"
        assert [stage["layers"] for stage in view["stages"]] == ["0..2", "2..5", "5..9"]
        assert [stage["index"] for stage in view["stages"]] == [0, 1, 2]
        assert {stage["engine"] for stage in view["stages"]} == {"dsa"}
        assert view["stages"][1]["address"] == chain.workers[0].address
        chain.head.wait_until(lambda: json.loads(chain.head.get("/v1/chain")[1])["rtt_ms"] is not None, "measured")
        assert chain.head.metric("skippy_link_rtt_seconds_count") > 0
    status, text = whole.get("/v1/chain")
    assert [stage["layers"] for stage in json.loads(text)["stages"]] == ["0..9"]


def stream(client, model, prompt, n, **more):
    return client.completions.create(model=model, prompt=prompt, max_tokens=n, temperature=0, stream=True,
                                     extra_body={"ignore_eos": True}, **more)


def not_ready(server):
    status, text = server.get("/readyz")
    return status == 503 and json.loads(text)["check"] == "chain"


@pytest.mark.parametrize("which", [0, 1], ids=["middle", "last"])
def test_a_stage_that_is_killed_fails_its_requests_and_comes_back(which):
    with Chain([2, 5], LAYERS["bundled"], *COMMON, *EXACT) as chain:
        client = connect(chain.head).with_options(max_retries=0)
        model = client.models.list().data[0].id
        before = said(chain.head, STORY[0])
        pieces = iter(stream(client, model, STORY[0], 400))
        next(pieces)
        chain.workers[which].kill()
        with pytest.raises(openai.APIError) as caught:
            for _ in pieces:
                pass
        assert caught.value.code == "stage_unavailable", caught.value
        chain.head.wait_until(lambda: not_ready(chain.head), "not ready")
        with pytest.raises(openai.APIStatusError) as refused:
            client.completions.create(model=model, prompt="x", max_tokens=1)
        assert refused.value.status_code == 502
        assert chain.head.get("/livez")[0] == 200
        assert chain.head.metric("skippy_lanes_busy") == 0
        chain.restart(which)
        chain.head.wait_until(lambda: chain.head.get("/readyz")[0] == 200, "ready again")
        assert said(chain.head, STORY[0]) == before
        assert chain.head.metric("skippy_link_connects_total", outcome="up") >= 2
        assert chain.head.metric("skippy_link_faults_total") >= 1


@pytest.mark.parametrize("which", [0, 1], ids=["middle", "last"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "drawn"])
def test_requests_go_on_with_the_same_tokens_after_a_restart(whole, which, sampling):
    prompts = STORY[:4]
    asked = [{"prompt": prompt, "max_tokens": 120, "ignore_eos": True, "temperature": 0, **sampling} for prompt in prompts]
    expected = [ask(whole, **request)["choices"][0]["text"] for request in asked]
    with Chain([2, 5], LAYERS["bundled"], *COMMON, *EXACT, head=["--resume-timeout", "60"]) as chain:
        client = connect(chain.head).with_options(max_retries=0)
        model = client.models.list().data[0].id
        begun = threading.Barrier(len(prompts) + 1)

        def follow(request):
            extra = {"ignore_eos": True}
            rest = {name: value for name, value in request.items() if name != "ignore_eos"}
            text = ""
            for number, piece in enumerate(client.completions.create(model=model, stream=True, extra_body=extra, **rest)):
                text += piece.choices[0].text if piece.choices else ""
                if number == 10:
                    begun.wait(PATIENCE_S)
            return text

        def disturb():
            begun.wait(PATIENCE_S)
            chain.workers[which].kill()
            chain.restart(which)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            assert at_once(follow, asked) == expected
        finally:
            thread.join()
        assert chain.head.metric("skippy_requests_finished_total", finish_reason="error") == 0


def test_a_stage_that_does_not_come_back_in_time_fails_what_waits():
    with Chain([4], LAYERS["bundled"], *COMMON, *EXACT, head=["--resume-timeout", "1"]) as chain:
        client = connect(chain.head).with_options(max_retries=0)
        model = client.models.list().data[0].id
        pieces = iter(stream(client, model, STORY[0], 400))
        next(pieces)
        chain.workers[0].kill()
        with pytest.raises(openai.APIError) as caught:
            for _ in pieces:
                pass
        assert caught.value.code == "stage_unavailable"
        chain.restart(0)
        chain.head.wait_until(lambda: chain.head.get("/readyz")[0] == 200, "ready again")


@pytest.mark.parametrize("direction", ["down", "up", "both"])
def test_a_line_that_swallows_everything_is_noticed(direction):
    worker = Worker("4..9", *COMMON, *EXACT, "--link-timeout", "1")
    line = Line(int(worker.address.rsplit(":", 1)[1]))
    head = Server("--layers", "0..4", "--next", line.address, *COMMON, *EXACT, "--link-timeout", "1", package=BUNDLED)
    try:
        client = connect(head).with_options(max_retries=0)
        model = client.models.list().data[0].id
        pieces = iter(stream(client, model, STORY[0], 400))
        next(pieces)
        line.swallow |= {"down", "up"} if direction == "both" else {direction}
        with pytest.raises(openai.APIError) as caught:
            for _ in pieces:
                pass
        assert caught.value.code == "stage_unavailable"
        line.swallow.clear()
        head.wait_until(lambda: head.get("/readyz")[0] == 200, "ready again")
        assert said(head, STORY[0])
    finally:
        line.close()
        head.must_be_well()
        worker.must_be_well()


def test_a_stage_that_is_stopped_is_lost_and_found():
    with Chain([4], LAYERS["bundled"], *COMMON, *EXACT, link=["--link-timeout", "1"]) as chain:
        worker = chain.workers[0]
        worker.signal(signal.SIGSTOP)
        chain.head.wait_until(lambda: not_ready(chain.head), "not ready")
        worker.signal(signal.SIGCONT)
        chain.head.wait_until(lambda: chain.head.get("/readyz")[0] == 200, "ready again")
        assert said(chain.head, STORY[0])


def test_a_stage_that_shuts_down_lets_requests_finish(whole):
    with Chain([2, 5], LAYERS["bundled"], *COMMON, *EXACT) as chain:
        client = connect(chain.head).with_options(max_retries=0)
        model = client.models.list().data[0].id
        pieces = iter(stream(client, model, STORY[0], 200))
        text = next(pieces).choices[0].text
        chain.workers[1].signal(signal.SIGTERM)
        chain.head.wait_until(lambda: not_ready(chain.head), "not ready")
        text += "".join(piece.choices[0].text for piece in pieces if piece.choices)
        assert text == ask(whole, STORY[0], max_tokens=200, ignore_eos=True)["choices"][0]["text"]
        assert chain.workers[1].wait() == 0
        chain.restart(1)
        chain.head.wait_until(lambda: chain.head.get("/readyz")[0] == 200, "ready again")


def test_stages_that_do_not_fit_are_refused_with_both_values():
    worker = Worker("4..9", *COMMON, *EXACT)
    try:
        for layers, flags, says in [
            ("0..3", [*COMMON, *EXACT], ["start at 3", "4..9"]),
            ("0..4", [*COMMON, "--cache-type-k", "f16"], ["f16", "f32"]),
            ("0..4", ["--lanes", "7", "--ctx-size", "512", *EXACT], ["7", "8"]),
        ]:
            head = Server("--layers", layers, "--next", worker.address, *flags, package=BUNDLED, ready=False)
            try:
                head.wait_until(lambda: not_ready(head), "refused")
                line = head.log_until(lambda line: "does not stand yet" in line)[-1]
                assert all(text in line for text in says), line
                reason = json.loads(head.get("/readyz")[1])["reason"]
                assert all(text in reason for text in says), reason
            finally:
                head.must_be_well()
        code, _, stderr = run(*command(BUNDLED, "--bind", "127.0.0.1:0", "--layers", "0..4"))
        assert code != 0 and "--next" in stderr
    finally:
        worker.must_be_well()

