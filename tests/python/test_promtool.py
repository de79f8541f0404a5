"""`promtool check metrics`, Prometheus' own judge, on what the server exposes after some traffic."""

import subprocess

import openai
import pytest


def test_promtool_accepts_the_metrics(server, client, model):
    client.completions.create(model=model, prompt="Hello", max_tokens=4)
    list(client.completions.create(model=model, prompt="Hello", max_tokens=4, stream=True))
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt="Hello", max_tokens=-4)

    status, page = server.get("/metrics")
    assert status == 200
    assert 'skippy_http_requests_total{method="POST",route="/v1/completions",code="200"}' in page
    judged = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")
