"""API keys as the official client sends them."""

import openai
import pytest
from conftest import connect
from server import BUNDLED, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("# of the second team\nsecond-key\n\n")
    server = Server("--api-key", "first-key", "--api-key-file", str(path), "--threads", "1", package=BUNDLED)
    yield server
    # Keys are never told.
    assert "first-key" not in server.log_text() and "second-key" not in server.log_text()
    server.must_be_well()


def complete(client):
    return client.completions.create(model=client.models.list().data[0].id, prompt="And", max_tokens=2)


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_every_key_opens(server, key):
    assert complete(connect(server, api_key=key)).usage.completion_tokens == 2


@pytest.mark.parametrize("key", ["x", "first", "first-key2", "FIRST-KEY", "# of the second team"])
def test_another_key_is_refused_once(server, refused, key):
    client = connect(server, api_key=key)
    error = refused(openai.AuthenticationError, 401, lambda: client.completions.create(model="any", prompt="And"))
    assert (error.type, error.code) == ("authentication_error", "invalid_api_key")
    assert len(key) == 1 or key not in error.body["message"]
    with pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_probes_and_metrics_need_no_key(server):
    for path in ("/livez", "/readyz", "/startupz", "/health", "/metrics"):
        assert server.get(path)[0] == 200, path
    assert server.get("/v1/models")[0] == 401
