"""Tools and answers of a given form through the official OpenAI Python client, on the bundled model.

The model knows nothing of tools: what holds, holds because it is enforced.
"""

import json
from enum import Enum

import openai
import pydantic
import pytest
from conftest import connect
from server import BUNDLED, Server, cases

CHAT = "/v1/chat/completions"
TOOLS = cases("tools")
MESSAGES = [{"role": "user", "content": "How will the weather be in Nineveh, and what shall be offered?"}]
SEEDS = range(1, 5)


@pytest.fixture(scope="module")
def server():
    server = Server("--lanes", "4", "--threads", "1", package=BUNDLED)
    yield server
    server.must_be_well()


@pytest.fixture(scope="module")
def client(server):
    return connect(server)


@pytest.fixture(scope="module")
def chat(client):
    model = client.models.list().data[0].id

    def ask(call=client.chat.completions.create, **more):
        request = {"model": model, "messages": MESSAGES, "temperature": 1, "seed": 1, "max_completion_tokens": 300}
        return call(**{**request, **more})

    return ask


def named(name):
    return {"type": "function", "function": {"name": name}}


class City(str, Enum):
    Jerusalem = "Jerusalem"
    Nineveh = "Nineveh"
    Babylon = "Babylon"


class Animal(str, Enum):
    ram = "ram"
    dove = "dove"


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=False)


class Weather(Strict):
    city: City
    days: int = pydantic.Field(ge=1, le=7)


class Offering(Strict):
    animal: Animal
    burnt: bool


def check(call):
    """Arguments that keep to the schema of the tool."""
    assert call.type == "function" and call.id.startswith("call_")
    {"weather": Weather, "offering": Offering}[call.function.name].model_validate_json(call.function.arguments)


def whole(choice):
    """The calls that are not cut by the budget. Nothing else keeps this model from calling on and on."""
    calls = choice.message.tool_calls or []
    return calls[:-1] if choice.finish_reason == "length" else calls


@pytest.mark.parametrize("name", ["weather", "offering"])
def test_llama_cpp_26535_a_tool_called_for_by_name_is_called(chat, name):
    for seed in SEEDS:
        (choice,) = chat(tools=TOOLS, tool_choice=named(name), seed=seed, parallel_tool_calls=False).choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert call.function.name == name
        check(call)


def test_vllm_54808_required_none_and_auto(chat):
    for seed in SEEDS:
        (choice,) = chat(tools=TOOLS, tool_choice="required", seed=seed, parallel_tool_calls=False).choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        check(call)

        (choice,) = chat(tools=TOOLS, seed=seed, max_completion_tokens=60).choices
        calls = choice.message.tool_calls or []
        assert calls or choice.message.content
        assert choice.finish_reason == "length" or (choice.finish_reason == "tool_calls") == bool(calls)
        for call in whole(choice):
            check(call)
    (choice,) = chat(tools=TOOLS, tool_choice="none", max_completion_tokens=24).choices
    assert choice.finish_reason != "tool_calls" and choice.message.tool_calls is None and choice.message.content


def test_vllm_48852_codex_7517_litellm_33678_streamed_calls(chat):
    several = 0
    for seed in SEEDS:
        request = {"tools": TOOLS, "tool_choice": "required", "seed": seed}
        (told,) = chat(**request).choices
        calls, ends = [], []
        for chunk in chat(stream=True, **request):
            (choice,) = chunk.choices
            ends += [choice.finish_reason] if choice.finish_reason else []
            for part in choice.delta.tool_calls or []:
                if part.index == len(calls):
                    assert part.id.startswith("call_") and part.type == "function"
                    calls.append([part.function.name, part.function.arguments or ""])
                else:
                    assert part.index == len(calls) - 1 and part.id is None and part.function.name is None
                    calls[part.index][1] += part.function.arguments
        assert ends == [told.finish_reason] and ends[0] in ("tool_calls", "length")
        assert calls == [[call.function.name, call.function.arguments] for call in told.message.tool_calls]
        for call in whole(told):
            check(call)
        several += len(calls) > 1
    assert several > 0


def test_what_a_tool_answered_goes_back_to_the_model(chat):
    (choice,) = chat(tools=TOOLS, tool_choice=named("weather"), parallel_tool_calls=False).choices
    (call,) = choice.message.tool_calls
    answered = [
        *MESSAGES,
        choice.message,
        {"role": "tool", "tool_call_id": call.id, "content": "Rain for forty days."},
    ]
    before, after = (
        chat(messages=messages, tools=TOOLS, tool_choice="none", max_completion_tokens=8).usage.prompt_tokens
        for messages in (MESSAGES, answered)
    )
    assert after > before + 10


class Kind(str, Enum):
    burnt = "burnt"
    peace = "peace"
    sin = "sin"


class Offer(Strict):
    animal: Animal
    spotless: bool
    kinds: list[Kind] = pydantic.Field(min_length=1, max_length=3)
    given_by: Kind | None


@pytest.mark.parametrize("speculative", [True, False])
def test_vllm_11484_the_clients_parser_gets_what_it_asks_for(chat, client, speculative):
    # vllm#11484, sglang#17576: with drafts too.
    drafted = 0
    for seed in SEEDS:
        answer = chat(client.chat.completions.parse, response_format=Offer, seed=seed,
                      extra_body={"speculative": speculative})
        assert isinstance(answer.choices[0].message.parsed, Offer)
        drafted += answer.model_extra["timings"].get("draft_n", 0)
    assert (drafted > 0) == speculative


def test_json_object(chat):
    (choice,) = chat(response_format={"type": "json_object"}).choices
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("case", cases("bad_structured"), ids=lambda case: json.dumps(case["fields"]))
def test_llama_cpp_19051_23463_what_cannot_be_enforced_is_refused(refused, chat, case):
    fields = {**({"tools": TOOLS} if case["tools"] else {}), **case["fields"]}
    error = refused(openai.BadRequestError, 400, lambda: chat(extra_body=fields), CHAT)
    assert error.type == "invalid_request_error" and error.code
    assert error.param.startswith(case["param"]) and case["param"] in error.body["message"]
