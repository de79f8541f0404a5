#!/usr/bin/env python3
"""What stages in processes of their own cost, and what they gain: see docs/benchmarks.md, "Chains".

    benches/chain.py loopback|prefill|delay|resume|all [--model bundled|smollm2] [--rounds N] [--json]

Starts every server itself, on this machine. Both sides of a comparison run in turns, and differences and ratios are taken
within a round.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/python"))
os.environ.setdefault("SKIPPY_BIN", str(ROOT / "target/release/skippy-stage"))
os.environ.setdefault("SKIPPY_TEST_PACKAGE", str(ROOT / ".cache/packages/smollm2"))

import netns  # noqa: E402
import server as servers  # noqa: E402
from chain import Chain, Worker  # noqa: E402
from server import BUNDLED, PACKAGE, Server  # noqa: E402

# Nothing here hangs for ever, but a busy machine is slow.
servers.PATIENCE_S = 600

# (package, layers, cut in two, cut in three); the middle of the weights, the output among them.
MODELS = {"bundled": (BUNDLED, 9, [4], [3, 5]), "smollm2": (PACKAGE, 30, [17], [12, 24])}
BUSY = "skippy_stage_busy_seconds_sum"


@contextlib.contextmanager
def pinned(core):
    """Processes that start here run on one core; all cores for None."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {sorted(before)[core % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Bench:
    """Settings of a run, and what it has measured so far."""

    def __init__(self, options):
        self.options = options
        self.package, self.layers, self.two, self.three = MODELS[options.model]
        self.flags = ["--ctx-size", "2048", "--lanes", "8", "--speculative-strategy", "disabled", *options.flags]
        self.one = ["--threads", "1"]
        self.dice = random.Random(options.seed)
        self.rows = []

    def prompt(self, server, n):
        """`n` token ids that no earlier request began with."""
        text = " ".join(f"{self.dice.randrange(10**6)} and {self.dice.choice('abcdefgh')}" for _ in range(n))
        return server.post("/tokenize", {"content": text})[1]["tokens"][:n]

    def say(self, what, values, unit, ask=None, **more):
        """Keeps one number: the median of `values`, one a round, and what it should be."""
        middle = statistics.median(values)
        row = {"what": what, "value": middle, "unit": unit, "rounds": values, **more}
        if ask:
            row["ask"], row["met"] = f"{ask[0]} {ask[1]}", middle <= ask[1] if ask[0] == "<=" else middle >= ask[1]
        self.rows.append(row)
        if not self.options.json:
            told = f"{what:58} {middle:9.3f} {unit:9} [{min(values):.3f} .. {max(values):.3f}]"
            if ask:
                told += f"   asked {row['ask']}: {'yes' if row['met'] else 'NO'}"
            print(told + "".join(f"   {name} {value}" for name, value in more.items()), flush=True)

    def rounds(self):
        return range(self.options.rounds)


def complete(server, prompt, n, **more):
    """The answer to one greedy request for `n` tokens."""
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == n
    return answer


def per_token(answer):
    """Milliseconds from one generated token to the next."""
    return answer["timings"]["decode_ms"] / (answer["usage"]["completion_tokens"] - 1)


def at_once(server, prompts, n):
    """(seconds, answers) of requests that run together."""
    with ThreadPoolExecutor(len(prompts)) as crowd:
        began = time.monotonic()
        answers = list(crowd.map(lambda prompt: complete(server, prompt, n), prompts))
        return time.monotonic() - began, answers


class Ends:
    """Busy seconds of all stages between two moments."""

    def __init__(self, *ends):
        self.ends = ends
        self.start()

    def start(self):
        self.before = [end.metric(BUSY) for end in self.ends]

    def busy(self):
        return [end.metric(BUSY) - before for end, before in zip(self.ends, self.before)]


def loopback(bench):
    """Chains on loopback against one process."""
    tokens, rounds = bench.options.tokens, bench.rounds()
    flags = [*bench.flags, *bench.one]
    with contextlib.ExitStack() as stack:
        whole = Server(*bench.flags, "--threads", str(bench.options.whole_threads), package=bench.package)
        stack.callback(whole.kill)
        chains = [stack.enter_context(Chain(cuts, bench.layers, *flags, package=bench.package))
                  for cuts in (bench.two, bench.three)]
        heads = [whole, *(chain.head for chain in chains)]
        alone, between = [], {1: [], 2: []}
        for _ in rounds:
            for head in heads:
                complete(head, bench.prompt(whole, 8), 8)
            prompt = bench.prompt(whole, 1)
            alone.append([per_token(complete(whole, prompt, tokens))])
            for links, chain in enumerate(chains, 1):
                ends = Ends(chain.head, *chain.workers)
                alone[-1].append(per_token(complete(chain.head, prompt, tokens)))
                # The prompt is one step more of the same kind.
                between[links].append((alone[-1][-1] - 1000 * sum(ends.busy()) / tokens) / links)
        bench.say("one process, one stream: time per token", [times[0] for times in alone], "ms")
        for links in (1, 2):
            bench.say(f"{links + 1} stages, one stream: added per token and link",
                      [(times[links] - times[0]) / links for times in alone], "ms", ("<=", 1.0))
            bench.say(f"{links + 1} stages, one stream: not spent computing, per link", between[links], "ms")
        crowd, idle = [], {1: [], 2: []}
        for _ in rounds:
            prompts = [bench.prompt(whole, 8) for _ in range(8)]
            took = [at_once(whole, prompts, tokens)[0]]
            for links, chain in enumerate(chains, 1):
                ends = Ends(chain.head, *chain.workers)
                took.append(at_once(chain.head, prompts, tokens)[0])
                idle[links].append([1 - busy / took[-1] for busy in ends.busy()])
            crowd.append(took)
        bench.say("one process, 8 streams", [8 * tokens / took[0] for took in crowd], "tokens/s")
        for links in (1, 2):
            stages = f"{links + 1} stages, 8 streams"
            bench.say(stages, [8 * tokens / took[links] for took in crowd], "tokens/s")
            bench.say(f"{stages}: to one process", [took[0] / took[links] for took in crowd], "x", (">=", 0.9))
            for stage, shares in enumerate(zip(*idle[links])):
                bench.say(f"{stages}: stage {stage} is idle", [100 * share for share in shares], "%")


def prefill(bench):
    """A long prompt through two stages, each on a core of its own."""
    flags = [*bench.flags, *bench.one]
    with contextlib.ExitStack() as stack:
        with pinned(1):
            worker = Worker(f"{bench.two[0]}..{bench.layers}", *flags, package=bench.package)
        stack.callback(worker.kill)
        with pinned(0):
            head = Server("--layers", f"0..{bench.two[0]}", "--next", worker.address, *flags, package=bench.package)
        stack.callback(head.kill)
        shares, times, halves = [], [], []
        ends = Ends(head, worker)
        for _ in range(bench.options.rounds + 1):
            prompt = bench.prompt(head, 1024)
            ends.start()
            answer = complete(head, prompt, 1)
            busy = ends.busy()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            times.append(answer["timings"]["prefill_ms"])
            shares.append(times[-1] / 1000 / sum(busy))
            halves.append(busy[0] / sum(busy))
        # The first one touches memory for the first time.
        bench.say("1024 tokens, 2 stages: time of the prompt", times[1:], "ms")
        bench.say("1024 tokens, 2 stages: share of the first in the work", [100 * half for half in halves[1:]], "%")
        bench.say("1024 tokens, 2 stages: time to the sum of their work", shares[1:], "x", ("<=", 0.65))


def delay(bench):
    """Two stages with 10 ms between them."""
    one_way, tokens = bench.options.delay, bench.options.tokens
    flags = [*bench.flags, *bench.one, "--insecure"]
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(netns.Network(2, delay_ms=one_way))
        with network.hosts[1]:
            worker = Worker(f"{bench.two[0]}..{bench.layers}", *flags, package=bench.package, host=network.hosts[1].address,
                            port=19000)
        stack.callback(worker.kill)
        stack.enter_context(network.hosts[0])
        head = Server("--layers", f"0..{bench.two[0]}", "--next", worker.address, *flags, package=bench.package)
        stack.callback(head.kill)
        complete(head, bench.prompt(head, 8), 8)
        times, added, gain, router = [], [], [], []
        ends = Ends(head, worker)
        for _ in bench.rounds():
            ends.start()
            began, cpu = time.monotonic(), network.stats()["cpu"]
            answer = complete(head, bench.prompt(head, 8), tokens)
            # The prompt is one step of as many.
            busy = 1000 * sum(ends.busy()) / tokens
            router.append(100 * (network.stats()["cpu"] - cpu) / (time.monotonic() - began))
            times.append(per_token(answer))
            added.append(times[-1] - busy)
            prompts = [bench.prompt(head, 8) for _ in range(4)]
            _, answers = at_once(head, prompts, tokens)
            gain.append(sum(times[-1] / per_token(answer) for answer in answers))
        bench.say(f"{one_way:g} ms one way, one stream: time per token", times, "ms")
        bench.say(f"{one_way:g} ms one way, one stream: time without compute", added, "ms", ("<=", 2 * one_way + 2))
        bench.say(f"{one_way:g} ms one way, 4 streams to one: tokens/s", gain, "x", (">=", 3.0))
        bench.say("what the router that makes the delay takes of a core", router, "%")


def follow(server, prompt, n, heard):
    """Streams one answer and calls `heard` for each piece of text."""
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    text = ""
    with urllib.request.urlopen(request) as lines:
        for line in lines:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
                heard(text)
    return text


def resume(bench):
    """How soon a stream goes on after its worker has been killed and started again."""
    flags, tokens = [*bench.flags, *bench.one], bench.options.tokens
    with Chain(bench.two, bench.layers, *flags, package=bench.package, head=["--resume-timeout", "120"]) as chain:
        late, reading = [], []
        for _ in bench.rounds():
            prompt = bench.prompt(chain.head, 512)
            expected = complete(chain.head, prompt, 2 * tokens)["choices"][0]["text"]
            # What has to be read again, on a chain that is warm, and has nothing of it.
            other = bench.prompt(chain.head, 512 + tokens)
            again = complete(chain.head, other, 1)["timings"]["prefill_ms"] / 1000
            times, half, restarted = [], threading.Event(), []

            def heard(text):
                times.append(time.monotonic())
                if len(text) >= len(expected) // 2:
                    half.set()

            def disturb():
                half.wait()
                chain.workers[0].kill()
                time.sleep(bench.options.away)
                chain.restart(0)
                restarted.append(time.monotonic())

            thread = threading.Thread(target=disturb)
            thread.start()
            said = follow(chain.head, prompt, 2 * tokens, heard)
            thread.join()
            assert said == expected, "the answer has changed"
            after = [at for at in times if at > restarted[0]]
            assert after, "the worker was killed too late: ask for more tokens"
            late.append(after[0] - restarted[0] - again)
            reading.append(again)
        bench.say("the same prompt and half the answer, read anew", reading, "s")
        bench.say("worker ready to next token, without that", late, "s", ("<=", 2.0))


KINDS = {"loopback": loopback, "prefill": prefill, "delay": delay, "resume": resume}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("--model", choices=MODELS, default="bundled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer (default: %(default)s)")
    parser.add_argument("--delay", type=float, default=10.0, metavar="MS", help="one way (default: %(default)s)")
    parser.add_argument("--away", type=float, default=0.0, metavar="S", help="how long a killed worker stays away")
    parser.add_argument("--whole-threads", type=int, default=1, metavar="N", help="of the one process; stages have one each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("flags", nargs="*", help="flags for all stages, behind `--`")
    bench = Bench(parser.parse_args())
    for needed in (servers.BIN, bench.package):
        if not pathlib.Path(needed).exists():
            parser.error(f"{needed} is not there: run `make build` and `make test-models`, or set SKIPPY_BIN and SKIPPY_TEST_PACKAGE")
    load = os.getloadavg()[0]
    for kind in KINDS if bench.options.kind == "all" else [bench.options.kind]:
        if kind == "delay" and (reason := netns.impossible()):
            print(f"delay: {reason}", file=sys.stderr)
            continue
        KINDS[kind](bench)
    loads = {"load_before": load, "load_after": os.getloadavg()[0], "cores": os.cpu_count()}
    if bench.options.json:
        print(json.dumps({"model": bench.options.model, "flags": bench.options.flags, **loads, "numbers": bench.rows}, indent=2))
    else:
        print("load of the machine: {load_before:.2f} before, {load_after:.2f} after, {cores} cores".format(**loads))


if __name__ == "__main__":
    main()
