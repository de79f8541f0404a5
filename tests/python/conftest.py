"""One server for all tests of the client; tests that end or refuse a server start their own."""

import openai
import pytest

from server import PATIENCE_S, Server

CONTEXT = 2048


@pytest.fixture(scope="session")
def server():
    # One thread: compute threads wait for each other many times per token, and on a machine that is busy with something
    # else each wait can cost a time slice.
    server = Server("--lanes", "2", "--ctx-size", str(CONTEXT), "--threads", "1")
    yield server
    server.must_be_well()


@pytest.fixture(scope="session")
def client(server):
    # Retries stay at the client's default of two, as users have them: a failure that cannot succeed must not cause any.
    return connect(server)


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture
def refused(server):
    """The error that a call raises: exactly a `kind`, and the only request that it cost, since a retry would fail too."""

    def check(kind, status, call, route="/v1/completions"):
        before = server.metric("skippy_http_requests_total", method="POST", route=route)
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        assert caught.value.status_code == status
        assert server.metric("skippy_http_requests_total", method="POST", route=route) - before == 1
        return caught.value

    return check


def connect(server, kind=openai.OpenAI, api_key="unused"):
    return kind(base_url=server.url + "/v1", api_key=api_key, timeout=PATIENCE_S)
