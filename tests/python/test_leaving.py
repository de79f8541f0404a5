"""Hundreds of clients that vanish, or stop reading: afterwards the server is as it was before."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from ledger import ENDLESS, SHORT, Ledger, resident
from server import BUNDLED, Server

LANES, CLIENTS = 4, 200


@pytest.fixture(scope="module")
def server():
    # Small batches: a long prompt takes many steps, so that there is a time between them in which clients can leave.
    server = Server(
        "--lanes", str(LANES), "--ctx-size", "8192", "--max-queue", str(2 * CLIENTS), "--batch-size", "64",
        "--threads", "1", package=BUNDLED,
    )
    yield server
    server.must_be_well()


@pytest.fixture
def ledger(server):
    """Counts requests; after the test the server must have told of each exactly once and hold nothing any more."""
    ledger = Ledger(server)
    yield ledger
    ledger.settle()


def test_clients_that_vanish_from_the_queue_cost_nothing(server, ledger):
    # llama.cpp#13262, #11720, ik_llama.cpp#1929
    running = [ledger.open(ENDLESS) for _ in range(LANES)]
    for stream in running:
        assert stream.read_head() == 200
    prompts = server.metric("skippy_prompt_tokens_total")
    waiting = [ledger.open({**ENDLESS, "stream": i % 2 == 0}) for i in range(CLIENTS)]
    server.wait_until(lambda: server.metric("skippy_requests_queued") == CLIENTS, "holding a long queue")
    for i, client in enumerate(waiting):
        client.leave(abruptly=i % 3 == 0)
    server.wait_until(lambda: server.metric("skippy_requests_queued") == 0, "rid of the queue")
    assert server.metric("skippy_prompt_tokens_total") == prompts
    # Those who stayed are still served.
    for stream in running:
        stream.read_until(b"data: ")
        stream.leave()


@pytest.mark.parametrize("moment", ["prefill", "decode"])
def test_clients_that_vanish_from_their_lanes(server, ledger, moment):
    # llama.cpp#24496, am17an/llama.cpp#20: the model drafts, so this is also a hundred aborted MTP requests.
    prompt = "And it came to pass. " * (300 if moment == "prefill" else 1)

    def come_and_go(i):
        client = ledger.open({**ENDLESS, "prompt": f"{i} {prompt}"})
        # The head comes with the lane, the first event with the first token.
        assert client.read_head() == 200
        if moment == "decode":
            client.read_until(b"data: ")
        client.leave(abruptly=i % 3 == 0)

    generated = server.metric("skippy_generation_tokens_total")
    cancelled = ledger.finished(finish_reason="cancelled")
    with ThreadPoolExecutor(2 * LANES) as crowd:
        list(crowd.map(come_and_go, range(CLIENTS)))
    server.wait_until(lambda: ledger.finished(finish_reason="cancelled") - cancelled == CLIENTS, "told of all")
    if moment == "prefill":
        assert server.metric("skippy_generation_tokens_total") - generated < CLIENTS


def test_memory_comes_back(server, ledger):
    def storm():
        streams = [ledger.open({**ENDLESS, "n": 2}) for _ in range(CLIENTS // 2)]
        ledger.started += len(streams)
        waiting = 2 * len(streams) - LANES
        server.wait_until(lambda: server.metric("skippy_requests_queued") == waiting, "told of all")
        for stream in streams:
            stream.leave()
        server.wait_until(lambda: server.metric("skippy_requests_in_flight") == 0, "rid of the storm")
        server.wait_until(lambda: server.metric("skippy_requests_queued") == 0, "rid of the storm's queue")

    # The first one pays for buffers that stay.
    storm()
    before = resident(server)
    for _ in range(4):
        storm()
    grown = resident(server) - before
    assert grown < 16, f"{grown:.1f} MiB more than before"


def test_a_reader_that_stops_holds_up_nobody(server, ledger):
    # lattice#744
    request = {**ENDLESS, "max_tokens": 400, "logprobs": 5, "n": LANES - 1}
    before = resident(server)
    ledger.started += LANES - 2
    slow = ledger.open(request, narrow=True)
    assert slow.read_head() == 200
    finished = ledger.finished(finish_reason="length")
    assert ledger.post(SHORT)["usage"]["completion_tokens"] == 8
    # Its lanes are given back although nobody reads.
    server.wait_until(lambda: ledger.finished(finish_reason="length") == finished + LANES, "done with the slow one")
    server.wait_until(lambda: server.metric("skippy_lanes_busy") == 0, "idle")
    assert server.metric("skippy_http_requests_in_flight") == 1, "everything fitted into buffers"
    assert resident(server) - before < 32
    # Nothing is lost when it reads on.
    text = slow.read_until(b"data: [DONE]\n\n")
    assert text.count(b'"finish_reason":"length"') == LANES - 1
    slow.leave()


def test_a_reader_that_stops_and_vanishes(server, ledger):
    clients = [ledger.open({**ENDLESS, "logprobs": 5}, narrow=True) for _ in range(LANES)]
    for client in clients:
        assert client.read_head() == 200
    for client in clients:
        client.leave(abruptly=True)
