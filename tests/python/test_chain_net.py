"""Stages on hosts of their own: a long bad line, lines that go dead in every phase, hosts that vanish, stages that come and go."""

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time

import netns
import openai
import pytest
from chain import Chain, Worker
from conftest import connect
from raw import COMPLETIONS, Raw
from server import ASSETS, BIN, BUNDLED, PATIENCE_S, Server, run
from test_neighbours import ask, at_once

CONTEXT = 1024
COMMON = ["--lanes", "8", "--ctx-size", str(CONTEXT), "--threads", "1", "--cache-type-k", "f32", "--cache-type-v", "f32"]
PORT = 19000
STORY = json.loads((ASSETS / "prompts.json").read_text())
SOAK_S = float(os.environ.get("SKIPPY_SOAK_SECONDS", "20"))

_reason = netns.impossible()
hosts_needed = pytest.mark.skipif(_reason is not None, reason=str(_reason))


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Flags of the first stage, and those of a worker on any host of the network."""
    out = tmp_path_factory.mktemp("certs")
    names = ",".join(netns.address(number) for number in range(4))
    code, _, stderr = run(BIN, "certs", "--out", out, "--host", names)
    assert code == 0, stderr

    def flags(name):
        return ["--link-ca", str(out / "ca.pem"), "--link-cert", str(out / f"{name}.pem"),
                "--link-key", str(out / f"{name}-key.pem")]

    return flags("client"), flags("server")


class Remote:
    """The first stage on one host, and the rest of the bundled model on others."""

    def __init__(self, network, tls, *args, cuts=(4,), layer_count=9, head=()):
        self.network = network
        bounds = [*cuts, layer_count]
        self.ends = []
        following = None
        try:
            for number, (start, end) in reversed(list(enumerate(zip(bounds, bounds[1:]), 1))):
                host = network.hosts[number]
                with host:
                    following = Worker(f"{start}..{end}", *COMMON, *tls[1], *args, next=following, port=PORT,
                                       host=host.address)
                self.ends.insert(0, following)
            self.start_head = lambda: Server("--layers", f"0..{cuts[0]}", "--next", following.address, *COMMON, *tls[0],
                                             *args, *head, package=BUNDLED)
            with network.hosts[0]:
                self.head = self.start_head()
        except BaseException:
            for end in self.ends:
                end.kill()
            raise
        self.workers = list(self.ends)
        self.ends.insert(0, self.head)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            for end in self.ends:
                print(end.log_text()[-3000:])
                end.kill()
        for end in self.ends:
            end.must_be_well()


@contextlib.contextmanager
def bad_line(count=2):
    """10 ms from host to host, and one packet of a hundred is lost. This thread is on the first host."""
    with netns.Network(count, delay_ms=10, loss=0.01) as network, network.hosts[0]:
        yield network


@pytest.fixture(scope="module")
def whole():
    """The bundled model in one process."""
    server = Server(*COMMON, package=BUNDLED)
    yield server
    server.must_be_well()


def kinds():
    """Requests of every kind: prompts that need one step and several, ends of every sort, draws, several choices."""
    for n, prompt in enumerate(STORY[:16]):
        plain = {"prompt": prompt, "max_tokens": 8 + 9 * (n % 5), "temperature": 0, "ignore_eos": True}
        yield plain
        yield [{**plain, "prompt": " ".join(STORY[n % 3:n + 10])}, {**plain, "stop": ["the", ","], "ignore_eos": False},
               {**plain, "temperature": 0.9, "seed": n, "logprobs": 2}, {**plain, "temperature": 1.0, "seed": n, "n": 2}][n % 4]


@hosts_needed
def test_a_long_bad_line_loses_and_changes_nothing(whole, tls):
    asked = list(kinds())
    answers = [ask(whole, **request)["choices"] for request in asked]
    deadline = time.monotonic() + SOAK_S
    with bad_line() as network, Remote(network, tls) as chain:
        head = chain.head

        def stays(number):
            client = connect(head).with_options(max_retries=0)
            model = client.models.list().data[0].id
            done = 0
            for at in itertools.count(number * 5):
                if done and time.monotonic() > deadline:
                    return done
                request, answer = asked[at % len(asked)], answers[at % len(asked)]
                if at % 4 and "ignore_eos" in request and len(answer) == 1:
                    assert streamed(client, model, request) == answer[0]["text"], request
                else:
                    assert ask(head, **request)["choices"] == answer, request
                done += 1

        def leaves():
            """Somebody who breaks off, at another moment each time."""
            for number in itertools.count():
                if number and time.monotonic() > deadline:
                    return 0
                stream = Raw(head).post({"prompt": STORY[number % 20], "max_tokens": 400, "ignore_eos": True, "stream": True})
                assert stream.read_head() == 200
                for _ in range(number % 6):
                    stream.read_until(b"\n\n")
                stream.leave(abruptly=number % 2 == 0)

        done = at_once(lambda number: leaves() if number == 8 else stays(number), range(9))
        stats = network.stats()
        print(f"{sum(done)} answers, {json.dumps(stats)}")
        assert stats["lost"] > 0
        ended = "skippy_requests_finished_total"
        head.wait_until(lambda: head.metric("skippy_requests_in_flight") == 0, "idle")
        assert head.metric(ended, finish_reason="error") == 0
        assert head.metric(ended, finish_reason="cancelled") > 0
        # Lost packets are TCP's business: the link has never been lost.
        assert head.metric("skippy_link_faults_total") == 0
        assert head.metric("skippy_link_connects_total", outcome="up") == 1
        assert head.metric("skippy_speculation_drafts_total") > 0
        assert chain.workers[0].metric("skippy_link_faults_total") == 0


def streamed(client, model, request):
    extra = {"ignore_eos": request["ignore_eos"]}
    rest = {name: value for name, value in request.items() if name not in extra}
    pieces = client.completions.create(model=model, stream=True, extra_body=extra, **rest)
    return "".join(piece.choices[0].text for piece in pieces if piece.choices)


def first_piece(head, prompt):
    client = connect(head).with_options(max_retries=0)
    model = client.models.list().data[0].id
    pieces = iter(client.completions.create(model=model, prompt=prompt, max_tokens=CONTEXT // 2, temperature=0, stream=True,
                                            extra_body={"ignore_eos": True}))
    next(pieces)
    return pieces


def steps(head, phase):
    return head.metric("skippy_engine_step_seconds_count", phase=phase)


# (flags of both ends, prompt, whether tokens come before the line goes dead, the phase that is under way then)
PHASES = {
    "prefill": (["--batch-size", "16"], " ".join(STORY)[:2400], False, "prefill"),
    "decode": (["--speculative-strategy", "disabled"], STORY[0], True, "decode"),
    "verify": ([], STORY[0], True, "verify"),
}


@hosts_needed
@pytest.mark.parametrize("direction", ["down", "up", "both"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_line_that_goes_dead_is_noticed_in_every_phase(whole, tls, phase, direction):
    flags, prompt, begun, kind = PHASES[phase]
    before = ask(whole, STORY[1])["choices"][0]["text"]
    with netns.Network(delay_ms=10) as network, network.hosts[0], \
            Remote(network, tls, *flags, "--link-timeout", "1") as chain:
        head, went = chain.head, {}

        def follow():
            try:
                for piece in first_piece(head, prompt):
                    went["pieces"] = went.get("pieces", 0) + 1
            except openai.APIError as error:
                went["error"], went["at"] = error, time.monotonic()

        sent = head.metric("skippy_link_frames_total", direction="out")
        thread = threading.Thread(target=follow)
        thread.start()
        if begun:
            head.wait_until(lambda: went.get("pieces", 0) > 2 and steps(head, kind) > 2, "under way")
        else:
            head.wait_until(lambda: head.metric("skippy_link_frames_total", direction="out") > sent + 3, "reading")
        for source, target in {"down": [(0, 1)], "up": [(1, 0)], "both": [(0, 1), (1, 0)]}[direction]:
            network.swallow(source, target)
        cut = time.monotonic()
        thread.join(PATIENCE_S)
        assert "error" in went, "the answer came to its end"
        assert getattr(went["error"], "code", None) == "stage_unavailable", went["error"]
        # One second until the link counts as lost, one for all the rest, and some for a busy machine.
        assert went["at"] - cut < 5
        assert begun or "pieces" not in went
        assert network.stats()["swallowed"] > 0
        head.wait_until(lambda: head.get("/readyz")[0] == 503, "not ready")
        network.heal()
        head.wait_until(lambda: head.get("/readyz")[0] == 200, "ready again")
        assert ask(head, STORY[1])["choices"][0]["text"] == before


@hosts_needed
@pytest.mark.parametrize("cut", [[(1, 2)], [(2, 1)], [(0, 1)], [(1, 0)]], ids=["1 to 2", "2 to 1", "0 to 1", "1 to 0"])
def test_answers_that_may_wait_outlast_a_dead_line(whole, tls, cut):
    request = {"prompt": STORY[0], "max_tokens": 120, "temperature": 0, "ignore_eos": True}
    expected = ask(whole, **request)["choices"][0]["text"]
    with netns.Network(3, delay_ms=5) as network, network.hosts[0], \
            Remote(network, tls, "--link-timeout", "1", cuts=(2, 5), head=["--resume-timeout", "60"]) as chain:
        head, said = chain.head, []
        client = connect(head).with_options(max_retries=0)
        model = client.models.list().data[0].id
        thread = threading.Thread(target=lambda: said.append(streamed(client, model, request)))
        thread.start()
        head.wait_until(lambda: steps(head, "verify") > 4, "under way")
        for source, target in cut:
            network.swallow(source, target)
        head.wait_until(lambda: head.get("/readyz")[0] == 503, "not ready")
        assert thread.is_alive()
        network.heal()
        thread.join(PATIENCE_S)
        assert said == [expected]
        assert head.metric("skippy_requests_finished_total", finish_reason="error") == 0


@hosts_needed
def test_a_head_whose_machine_vanishes_is_forgotten_by_all_stages(whole, tls):
    # The network is dead before the process is: no stage hears a word of its end.
    expected = ask(whole, STORY[1])["choices"]
    with netns.Network(4, delay_ms=1) as network, network.hosts[0], \
            Remote(network, tls, "--link-timeout", "2", cuts=(2, 5)) as chain:
        first_piece(chain.head, STORY[0])
        network.swallow(0, 1)
        network.swallow(1, 0)
        chain.head.kill()
        with network.hosts[3]:
            chain.ends[0] = head = chain.start_head()
            assert ask(head, STORY[1])["choices"] == expected
            assert head.metric("skippy_link_up", direction="out") == 1


def test_answers_that_may_wait_outlast_stages_that_come_and_go(whole):
    asked = list(kinds())
    answers = [ask(whole, **request)["choices"] for request in asked]
    dice = random.Random(1)
    deadline = time.monotonic() + SOAK_S
    over = threading.Event()
    with Chain([2, 5], 9, *COMMON, link=["--link-timeout", "1"], head=["--resume-timeout", "60"]) as chain:
        head = chain.head

        def asks(number):
            done = 0
            for at in itertools.count(number * 5):
                if done and over.is_set():
                    return done
                status, answer = head.post(COMPLETIONS, asked[at % len(asked)])
                if status == 200:
                    assert answer["choices"] == answers[at % len(asked)], asked[at % len(asked)]
                    done += 1
                else:
                    # Who comes while a stage is away is told so, and does not wait.
                    assert answer["error"]["code"] == "stage_unavailable", answer
                    head.wait_until(lambda: head.get("/readyz")[0] == 200, "ready again")

        def disturbs():
            """Whatever happens next, it happens while answers are on their way."""
            losses = 0
            try:
                while not losses or time.monotonic() < deadline:
                    said = head.metric("skippy_generation_tokens_total") + dice.randrange(20, 200)
                    head.wait_until(lambda: head.metric("skippy_generation_tokens_total") > said, "going on")
                    which, worker = dice.choice(list(enumerate(chain.workers)))
                    if dice.random() < 0.5:
                        worker.kill()
                        chain.restart(which)
                    else:
                        worker.signal(signal.SIGSTOP)
                        head.wait_until(lambda: head.get("/readyz")[0] == 503, "not ready")
                        worker.signal(signal.SIGCONT)
                    losses += 1
            finally:
                over.set()
            return losses

        done = at_once(lambda number: disturbs() if number == 8 else asks(number), range(9))
        print(f"{sum(done[:8])} answers, {done[8]} losses")
        # At most those that were about to start: all others have waited.
        assert head.metric("skippy_requests_finished_total", finish_reason="error") <= done[8]
        assert head.metric("skippy_link_connects_total", outcome="up") > done[8]
