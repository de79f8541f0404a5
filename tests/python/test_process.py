"""The server as a process: signals, exit codes, and starts that must fail with one clear line."""

import json
import re
import signal
import socket

import openai
import pytest
from conftest import connect
from raw import Recorder
from server import BUNDLED, PACKAGE, Server, run_to_end


@pytest.fixture
def own_server():
    server = Server("--ctx-size", "1024", "--threads", "1")
    yield server
    server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_ends_with_0(own_server, number):
    own_server.signal(number)
    assert own_server.wait() == 0, own_server.log_text()


def test_sigterm_lets_running_streams_finish(own_server):
    client = connect(own_server)
    model = client.models.list().data[0].id
    stream = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=200, stream=True, temperature=0,
        extra_body={"ignore_eos": True},
    )
    chunks = [next(stream)]
    own_server.signal(signal.SIGTERM)
    chunks += stream
    assert chunks[-1].choices[0].finish_reason == "length"
    assert own_server.wait() == 0, own_server.log_text()


def test_llama_cpp_16104_a_stream_cut_by_shutdown_raises():
    server = Server("--shutdown-timeout", "0", "--threads", "1", "--ctx-size", "65536", package=BUNDLED)
    try:
        client = connect(server)
        model = client.models.list().data[0].id
        stream = client.completions.create(
            model=model, prompt="And", max_tokens=60000, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        server.signal(signal.SIGTERM)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "shutting_down"
        assert server.wait() == 0, server.log_text()
    finally:
        server.kill()


def test_openai_python_2722_comments_do_not_disturb_the_client():
    # One thread reads some hundred tokens of this in a second.
    request = {"prompt": "And it came to pass. " * 120, "max_tokens": 4, "stream": True, "temperature": 0}
    server = Server("--keepalive", "1", "--ctx-size", "1024", "--threads", "1")
    try:
        model = connect(server).models.list().data[0].id
        with Recorder(server) as recorder:
            chunks = list(connect(recorder).completions.create(model=model, **request))
        assert b": ping\n\n" in recorder.answered and not re.search(rb"^id:", recorder.answered, re.M)
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
        texts = re.findall(rb'"text":("(?:[^"\\]|\\.)*")', recorder.answered)
        assert [chunk.choices[0].text for chunk in chunks] == [json.loads(text) for text in texts]
    finally:
        server.kill()


def test_a_second_signal_does_not_wait_for_streams(own_server):
    client = connect(own_server)
    request = {"prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "extra_body": {"ignore_eos": True}}
    stream = client.completions.create(model=client.models.list().data[0].id, stream=True, **request)
    next(stream)
    own_server.signal(signal.SIGTERM)
    own_server.log_until(lambda line: "shutting down" in line)
    own_server.signal(signal.SIGTERM)
    assert own_server.wait() == 1, own_server.log_text()


def refused(*args):
    """The one line of a start that fails."""
    code, out, err = run_to_end(*args)
    assert code == 1, err
    assert out == ""
    lines = [line for line in err.splitlines() if "error" in line.lower()]
    assert len(lines) == 1, err
    assert "panicked" not in err and "RUST_BACKTRACE" not in err
    return lines[0]


def test_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(PACKAGE, "--bind", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in line and "in use" in line


def test_missing_package_is_one_line(tmp_path):
    assert str(tmp_path / "nowhere") in refused(str(tmp_path / "nowhere"), "--bind", "127.0.0.1:0")


@pytest.mark.parametrize("layers", ["0..0", "9..3", "0..31"])
def test_impossible_layer_range_is_one_line(layers):
    assert layers in refused(PACKAGE, "--layers", layers, "--bind", "127.0.0.1:0")


@pytest.mark.parametrize("layers", ["0..10", "10..30"])
def test_part_of_a_model_says_what_it_lacks(layers):
    line = refused(PACKAGE, "--layers", layers, "--bind", "127.0.0.1:0")
    assert ("output" if layers == "0..10" else "input") in line


def test_check_and_print_config_end_by_themselves():
    code, _, err = run_to_end(PACKAGE, "--check")
    assert code == 0, err
    code, out, err = run_to_end(PACKAGE, "--lanes", "3", "--print-config")
    assert code == 0, err
    assert "lanes = 3" in out


def test_unknown_flag_is_a_usage_error():
    code, _, err = run_to_end("--no-such-flag")
    assert code == 2
    assert "--no-such-flag" in err


def test_split_server_says_what_the_whole_one_says():
    def logprobs(*args):
        server = Server("--lanes", "2", "--ctx-size", "2048", "--threads", "1", *args)
        try:
            client = connect(server)
            model = client.models.list().data[0].id
            request = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 16, "logprobs": 1}
            return client.completions.create(model=model, **request).choices[0].logprobs
        finally:
            server.kill()

    assert logprobs("--split", "10,20") == logprobs()
