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


def connect(server, kind=openai.OpenAI):
    return kind(base_url=server.url + "/v1", api_key="unused", timeout=PATIENCE_S)
