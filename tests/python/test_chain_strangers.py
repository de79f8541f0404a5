"""Who else calls a stage: strangers by the thousand and those who dawdle, heads that died, stages that do not belong to it."""

import contextlib
import json
import pathlib
import socket

import pytest
from chain import Chain, Worker, free_port
from ledger import resident
from server import ASSETS, BUNDLED, PACKAGE, PATIENCE_S, Server
from test_chain_net import COMMON, CONTEXT, first_piece
from test_neighbours import ask

STORY = json.loads((ASSETS / "prompts.json").read_text())
# A whole HTTP/2 preface with empty settings: nothing is wrong with it, and nothing follows.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


@pytest.fixture(scope="module")
def whole():
    """The bundled model in one process."""
    server = Server(*COMMON, package=BUNDLED)
    yield server
    server.must_be_well()


def test_workers_are_free_at_once_when_the_head_is_killed(whole):
    with Chain([2, 5], 9, *COMMON) as chain:
        head = chain.head
        for _ in range(3):
            first_piece(head, STORY[0])
            head.kill()
            head = chain.head = Server("--layers", "0..2", "--next", chain.workers[0].address, *COMMON, package=BUNDLED)
            assert head.metric("skippy_link_connects_total", outcome="up") == 1
            assert head.metric("skippy_link_connects_total") == 1, "it was not let in at its first try"
            assert ask(head, STORY[1])["choices"] == ask(whole, STORY[1])["choices"]


def open_files(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_a_thousand_callers_who_leave_do_no_harm(whole):
    with Chain([4], 9, *COMMON) as chain:
        worker = chain.workers[0]
        port = int(worker.address.rsplit(":", 1)[1])
        files, memory = open_files(worker), resident(worker)
        pieces = first_piece(chain.head, STORY[0])
        for number in range(1000):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                # Some say nothing, some begin, some talk nonsense.
                caller.sendall([b"", PREFACE, PREFACE[:-4], b"GET / HTTP/1.1\r\n\r\n", bytes(64)][number % 5])
        assert sum(1 for _ in pieces) > 0
        worker.wait_until(lambda: worker.metric("skippy_link_up") >= 1 and open_files(worker) <= files + 2, "rid of them")
        assert resident(worker) < memory + 32
        assert ask(chain.head, STORY[1])["choices"] == ask(whole, STORY[1])["choices"]


def test_callers_who_dawdle_are_shown_the_door_and_keep_nobody_out(whole):
    worker = Worker("4..9", *COMMON)
    port = int(worker.address.rsplit(":", 1)[1])
    callers = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(30)]
    try:
        for number, caller in enumerate(callers):
            caller.sendall([b"", PREFACE[:10], PREFACE][number % 3])
        head = Server("--layers", "0..4", "--next", worker.address, *COMMON, package=BUNDLED)
        try:
            assert ask(head, STORY[1])["choices"] == ask(whole, STORY[1])["choices"]
            for caller in callers:
                # Settings may come, then the end.
                with contextlib.suppress(ConnectionResetError):
                    while caller.recv(4096):
                        pass
        finally:
            head.must_be_well()
    finally:
        for caller in callers:
            caller.close()
        worker.must_be_well()


def must_be_refused(says, *flags, package=BUNDLED, **more):
    """A first stage says all of `says` of a chain that does not stand. It tries again and again, and may meet a stage that is
    still busy with the try before."""
    head = Server(*flags, package=package, ready=False, **more)
    heard = []
    try:
        def told():
            status, text = head.get("/readyz")
            answer = json.loads(text)
            heard.append(answer)
            return status == 503 and answer["check"] == "chain" and all(text in answer["reason"] for text in says)

        head.wait_until(told, f"refused with {says}")
    finally:
        print(heard[-1:])
        head.must_be_well()


def test_a_cycle_of_stages_is_refused():
    own, other = free_port(), free_port()
    ends = []
    try:
        ends.append(Worker("4..6", *COMMON, port=own, next=f"http://127.0.0.1:{own}"))
        must_be_refused(["cycle"], "--layers", "0..4", "--next", ends[0].address, *COMMON)
        ends.pop().must_be_well()
        ends.append(Worker("4..6", *COMMON, port=own, next=f"http://127.0.0.1:{other}"))
        ends.append(Worker("6..8", *COMMON, port=other, next=f"http://127.0.0.1:{own}"))
        must_be_refused(["cycle"], "--layers", "0..4", "--next", ends[0].address, *COMMON)
    finally:
        for end in ends:
            end.must_be_well()


def test_a_head_that_calls_itself_is_told_so():
    port = free_port()
    own = f"127.0.0.1:{port}"
    must_be_refused([f"stage 1 at http://{own}"], "--layers", "0..4", "--next", f"http://{own}", *COMMON, bind=own)


def test_stages_of_other_models_and_other_contexts_are_refused_with_both_values():
    worker = Worker("4..9", *COMMON)
    try:
        assert COMMON[2] == "--ctx-size"
        rest = COMMON[:2] + COMMON[4:]
        ours, theirs = (json.loads((pathlib.Path(package) / "model-package.json").read_text())["model_id"]
                        for package in (PACKAGE, BUNDLED))
        must_be_refused([ours, theirs], "--layers", "0..4", "--next", worker.address, *COMMON, package=PACKAGE)
        must_be_refused(["--ctx-size", "512", str(CONTEXT)], "--layers", "0..4", "--next", worker.address, *rest,
                        "--ctx-size", "512")
    finally:
        worker.must_be_well()
