"""schemathesis reads `/openapi.json` and makes up requests, good and bad ones: no 5xx, and every answer as described."""

import json

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi import checks as described

from server import BUNDLED, PATIENCE_S, Server

# Enough of each kind for a minute on two cores; one seed, so that a red run can be run again.
EXAMPLES = 80
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
CHECKS = [
    schemathesis.checks.not_a_server_error,
    described.content_type_conformance,
    described.response_schema_conformance,
    described.status_code_conformance,
]
# What the document allows and the model answers: made-up token ids and roles in any order are refused for the most part.
LIKELY = {
    "prompt": {"type": "string", "minLength": 1, "maxLength": 20},
    "messages": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "type": "object",
            "properties": {"role": {"const": "user"}, "content": {"type": "string", "maxLength": 20}},
            "required": ["role", "content"],
            "additionalProperties": False,
        },
    },
}
GENERATING = ["/v1/completions", "/v1/chat/completions"]


@pytest.fixture(scope="module")
def bundled():
    server = Server("--threads", "1", "--ctx-size", "256", "--lanes", "4", "--max-queue", "256", package=BUNDLED)
    yield server
    server.must_be_well()


def bundled_model(server):
    return json.loads(server.get("/v1/models")[1])["data"][0]["id"]


@pytest.fixture(scope="module")
def document(bundled):
    """As served, but for the model, of which there is one, and the length of answers: a made-up number would keep the model
    busy for all of the context."""
    document = schemathesis.openapi.from_url(bundled.url + "/openapi.json").raw_schema
    for path in GENERATING:
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for name in ["max_tokens", "max_completion_tokens"]:
            body["properties"][name] |= {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 3}]}
        body["required"].append("max_completion_tokens")
        for name in ["n", "best_of"]:
            if name in body["properties"]:
                body["properties"][name] |= {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 2}]}
        body["properties"] = {
            name: {"anyOf": [LIKELY[name], field]} if name in LIKELY else field
            for name, field in body["properties"].items()
            if not field["description"].startswith("Refused")
        }
        body["properties"]["model"] = {"const": bundled_model(bundled)}
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=bundled.url)
    return schema


def plain(value):
    """Numbers like 3.0 are integers for JSON Schema, and not for us; schemathesis is fond of them."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [plain(item) for item in value]
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case _:
            return value


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_answer_is_as_described(bundled, document, mode):
    tried = 0
    for operation in document.get_all_operations():
        operation = operation.ok()
        if mode is schemathesis.GenerationMode.NEGATIVE and operation.method.upper() != "POST":
            continue

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @SETTINGS
        def check(case):
            nonlocal tried
            tried += 1
            case.body = plain(case.body)
            case.call_and_validate(checks=CHECKS, timeout=PATIENCE_S)

        check()
    assert tried > EXAMPLES
    if mode is schemathesis.GenerationMode.POSITIVE:
        # What is meant to be good must be so now and then, or this says little.
        for route in GENERATING:
            good = bundled.metric("skippy_http_requests_total", method="POST", route=route, code="200")
            assert good > EXAMPLES / 10, route
