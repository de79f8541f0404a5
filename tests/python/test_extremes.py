"""Connections that are odd and requests that are as large as can be, against a real server with a small context."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from ledger import ENDLESS, SHORT, Ledger
from raw import COMPLETIONS, Raw
from server import BUNDLED, Server

LANES, CONTEXT = 4, 512


@pytest.fixture(scope="module")
def server():
    server = Server("--lanes", str(LANES), "--ctx-size", str(CONTEXT), "--threads", "1", package=BUNDLED)
    yield server
    server.must_be_well()


@pytest.fixture
def ledger(server):
    """Counts requests; after the test the server must have told of each exactly once and hold nothing any more."""
    ledger = Ledger(server)
    yield ledger
    ledger.settle()


# -- connections that are odd ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_sending_side_is_a_client_that_left(server, ledger, stream):
    client = ledger.open({**ENDLESS, "stream": stream})
    server.wait_until(lambda: server.metric("skippy_lanes_busy") == 1, "busy")
    cancelled = ledger.finished(finish_reason="cancelled")
    client.socket.shutdown(socket.SHUT_WR)
    assert b"[DONE]" not in client.read_rest()
    server.wait_until(lambda: ledger.finished(finish_reason="cancelled") == cancelled + 1, "rid of it")
    client.leave()


@pytest.mark.parametrize("sent", [b"", b"{", b'{"prompt": "And"'])
def test_a_body_that_never_comes_is_no_request(server, ledger, sent):
    for abruptly in (False, True):
        client = Raw(server).post(sent, length=1000)
        client.leave(abruptly)


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"GET\r\n\r\n", b"\r\n" * 500, bytes(70000)],
    ids=["TLS", "half a line", "empty lines", "zeros"],
)
def test_bytes_that_are_no_http(server, ledger, junk):
    client = Raw(server)
    try:
        client.socket.sendall(junk)
        client.socket.shutdown(socket.SHUT_WR)
    except OSError:
        # Closed on us already, which is as good an answer.
        pass
    answer = client.read_rest()
    assert not answer or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431")), answer
    client.leave()


# -- requests that are large -------------------------------------------------------------------------------------------


def test_five_mebibytes_are_read_and_judged(server, ledger):
    # vllm PR#46582, lablup/mlxcel#1227
    large = "In the beginning " * (5 * 2**20 // 17)
    assert ledger.post({**SHORT, "something": large})["usage"]["completion_tokens"] == 8
    status, answer = server.post(COMPLETIONS, {**SHORT, "prompt": large})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert len(answer["error"]["message"]) < 600
    status, answer = server.post(COMPLETIONS, {**SHORT, "prompt": large * 7})
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


def test_a_context_exactly_full(server, ledger):
    tokens = server.post("/tokenize", {"content": "And it came to pass. " * CONTEXT})[1]["tokens"]
    assert len(tokens) > CONTEXT

    def ask(n, max_tokens):
        return {"prompt": tokens[:n], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}

    for n, max_tokens, given in [(CONTEXT - 3, 3, 3), (CONTEXT - 3, 99, 3), (CONTEXT - 1, 9, 1)]:
        answer = ledger.post(ask(n, max_tokens))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (n, given)
    for n in (CONTEXT, CONTEXT + 1):
        status, answer = server.post(COMPLETIONS, ask(n, 1))
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert (answer["error"]["n_prompt_tokens"], answer["error"]["n_ctx"]) == (n, CONTEXT)


def test_every_lane_full_at_once(server, ledger):
    # llama.cpp#23652, #4185: no request's overflow is another one's fault, and none waits for ever.
    tokens = server.post("/tokenize", {"content": "And it came to pass. " * CONTEXT})[1]["tokens"]
    requests = [
        {"prompt": tokens[i : i + CONTEXT - 8], "max_tokens": 99, "temperature": 0, "ignore_eos": True}
        for i in range(2 * LANES)
    ]
    with ThreadPoolExecutor(len(requests)) as crowd:
        answers = list(crowd.map(ledger.post, requests))
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [8] * len(requests)
    alone = ledger.post(requests[3])
    assert alone["choices"] == answers[3]["choices"]
