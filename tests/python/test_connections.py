"""Many connections that do nothing cost little."""

import http.client
import resource
import urllib.parse

import pytest
from server import BUNDLED, Server

IDLE = 1000
LIMIT = 64 << 20


@pytest.fixture
def many_files():
    """The server has the limits of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IDLE + 200
    if before[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(before[1], wanted) if before[1] >= 0 else before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def ask(connection, method="GET", path="/v1/models", body=None):
    connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200


def test_a_thousand_idle_connections_stay_under_64_mib(many_files):
    server = Server("--threads", "1", package=BUNDLED)
    try:
        address = urllib.parse.urlsplit(server.url).netloc
        complete = ("POST", "/v1/completions", '{"prompt": "And", "max_tokens": 1}')
        # What the first requests allocate stays.
        for _ in range(20):
            ask(http.client.HTTPConnection(address), *complete)
        before = server.metric("process_resident_memory_bytes")
        held = [http.client.HTTPConnection(address) for _ in range(IDLE)]
        for i, connection in enumerate(held):
            ask(connection, *(complete if i % 10 == 0 else ()))
        idle = server.metric("process_resident_memory_bytes") - before
        assert idle < LIMIT, f"{idle / IDLE / 1024:.1f} KiB a connection"
        # They are still there, each good for another request.
        for connection in held[::100]:
            sock = connection.sock
            ask(connection)
            assert connection.sock is sock is not None
    finally:
        server.kill()
