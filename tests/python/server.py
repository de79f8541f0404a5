"""A real `skippy-stage serve` process, and a few HTTP calls that the OpenAI client does not make."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request

BIN = os.environ["SKIPPY_BIN"]
PACKAGE = os.environ["SKIPPY_TEST_PACKAGE"]
ASSETS = pathlib.Path(__file__).parents[2] / "assets"
# A GLM-DSA model with an MTP block, which needs no download.
BUNDLED = str(ASSETS / "skippy-kjv-6m")

# Upper bound of every wait. Generous: the machine may be busy with other builds.
PATIENCE_S = 60

_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def cases(name):
    """A table that the tests in JavaScript walk too."""
    return json.loads((pathlib.Path(__file__).parents[1] / "cases" / f"{name}.json").read_text())


def counts(usage):
    """What a usage counts, apart from what was spared: that depends on what the server has kept."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def command(*args):
    return [BIN, "serve", *args]


def environment(**more):
    """The tests' own environment without settings of the server's, and `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SKIPPY_", "RUST_LOG"))}
    return {**kept, "NO_COLOR": "1", **more}


def run_to_end(*args):
    """Runs `serve` with arguments that end it by itself; returns (exit code, stdout, stderr)."""
    return run(*command(*args))


def run(*args):
    """Runs a command that ends by itself; returns (exit code, stdout, stderr)."""
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, done.stdout, done.stderr


class Server:
    """One server process on a free loopback port, started and ready when the constructor returns."""

    # Lines of the log: the one with the address for HTTP, and the one that says that others may call.
    ADDRESS = _LISTENING
    CALLABLE = _LISTENING

    def __init__(self, *args, package=PACKAGE, env=None, ready=True, bind="127.0.0.1:0"):
        self.start(command(package, "--bind", bind, *args), env)
        if ready:
            with self.killed_on_failure():
                self.wait_until(lambda: self.get("/readyz")[0] == 200, "ready")

    def start(self, argv, env=None):
        """Starts a process; it can be called when this returns."""
        self.process = subprocess.Popen(
            argv,
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = []
        self._log_grows = threading.Condition()
        self._log_said_enough = threading.Event()
        self._callable = False
        self.url = None
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        with self.killed_on_failure():
            self._log_said_enough.wait(PATIENCE_S)
            assert self.url and self._callable, f"the process named no address, or waits for nobody:\n{self.log_text()}"

    @contextlib.contextmanager
    def killed_on_failure(self):
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def _read_log(self):
        for line in self.process.stderr:
            with self._log_grows:
                self.log.append(line)
                self._log_grows.notify_all()
            if found := self.ADDRESS.search(line):
                self.url = found.group(1)
            if self.CALLABLE.search(line):
                self._callable = True
                self._log_said_enough.set()
        self._log_said_enough.set()

    def log_text(self):
        return "".join(self.log)

    def log_until(self, is_last, start=0):
        """Lines of the log from the one numbered `start` to the first for which `is_last` holds. What the server logs
        before it answers may be read after the answer."""
        at = start

        def found():
            nonlocal at
            while at < len(self.log):
                at += 1
                if is_last(self.log[at - 1]):
                    return True
            return False

        with self._log_grows:
            assert self._log_grows.wait_for(found, PATIENCE_S), f"not logged:\n{self.log_text()}"
            return self.log[start:at]

    def get(self, path):
        """(status, body) of a GET."""
        return self._call(urllib.request.Request(self.url + path))

    def post(self, path, body):
        """(status, parsed body) of a POST of JSON."""
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        status, text = self._call(request)
        return status, json.loads(text)

    def _call(self, request):
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name, **labels):
        """Sum over the series of `name` that carry `labels`. The name must be known; a status that nobody had is 0."""
        status, text = self.get("/metrics")
        assert status == 200
        family = re.sub(r"_(sum|count|bucket)$", "", name)
        assert f"# TYPE {name} " in text or f"# TYPE {family} histogram" in text, f"/metrics does not know {name}"
        return sum(value for found, found_labels, value in samples(text)
                   if found == name and labels.items() <= found_labels.items())

    def wait_until(self, condition, what):
        """Asks again until `condition` holds. Every ask is a request to the server, so this is no idle spin."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"the server died before it was {what}:\n{self.log_text()}"
            assert time.monotonic() < deadline, f"the server was not {what} in {PATIENCE_S} s:\n{self.log_text()}"

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        """Exit code, once the process has ended by itself."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def must_be_well(self):
        """Ends the server, which must have lived so far, without a panic in any thread."""
        alive = self.process.poll() is None
        self.kill()
        assert alive and "panicked" not in self.log_text(), self.log_text()[-4000:]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)


def samples(text):
    """The samples of a Prometheus text page as (name, labels, value)."""
    for line in text.splitlines():
        if found := _SAMPLE.match(line):
            name, labels, value = found.groups()
            yield name, dict(_LABEL.findall(labels or "")), float(value)
