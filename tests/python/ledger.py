"""What a server must have counted, kept on the side of its clients."""

import pathlib

from raw import COMPLETIONS, Raw

# Runs until somebody stops it, or the context is full.
ENDLESS = {"prompt": "And it came to pass", "max_tokens": 1 << 20, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "And it came to pass", "max_tokens": 8, "temperature": 0}


class Ledger:
    """What a server should have counted, kept on this side."""

    def __init__(self, server):
        self.server = server
        self.finished_before = self.finished()
        self.started = 0

    def finished(self, **labels):
        return self.server.metric("skippy_requests_finished_total", **labels)

    def open(self, body, **options):
        """A connection that has sent a request which the server accepts."""
        self.started += 1
        return Raw(self.server, **options).post(body)

    def post(self, body):
        self.started += 1
        status, answer = self.server.post(COMPLETIONS, body)
        assert status == 200, answer
        return answer

    def settle(self):
        server = self.server
        for gauge in ("lanes_busy", "requests_in_flight", "requests_queued", "http_requests_in_flight"):
            server.wait_until(lambda gauge=gauge: server.metric(f"skippy_{gauge}") == 0, f"idle by {gauge}")
        # vllm#31503: the sum over all reasons is what was started.
        server.wait_until(lambda: self.finished() - self.finished_before >= self.started, "done counting")
        assert self.finished() - self.finished_before == self.started
        # Every lane works.
        lanes = int(server.metric("skippy_lanes_capacity"))
        streams = [Raw(server).post(ENDLESS) for _ in range(lanes)]
        for stream in streams:
            assert stream.read_head() == 200
        server.wait_until(lambda: server.metric("skippy_lanes_busy") == lanes, "busy on all lanes")
        for stream in streams:
            stream.leave()
        counted = self.finished_before + self.started + lanes
        server.wait_until(lambda: self.finished() == counted, "idle again")


def resident(server):
    """MiB of memory that the server's process holds and shares with no file."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024
