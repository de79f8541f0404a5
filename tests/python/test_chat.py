"""Conversations through the official OpenAI Python client, on SmolLM2 with the template that it came with."""

import json

import openai
import pytest
from server import cases, counts

CHAT = "/v1/chat/completions"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant. Answer briefly."},
    {"role": "user", "content": "What is the capital of France?"},
]
GREEDY = {"temperature": 0, "max_completion_tokens": 24}


@pytest.fixture(scope="module")
def chat(client, model):
    def ask(**more):
        return client.chat.completions.create(**{"model": model, "messages": MESSAGES, **GREEDY, **more})

    return ask


@pytest.fixture(scope="module")
def greedy(chat):
    return chat()


def joined(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_an_answer_is_about_the_question(greedy, model):
    assert (greedy.object, greedy.model) == ("chat.completion", model)
    assert greedy.id.startswith("chatcmpl-")
    (choice,) = greedy.choices
    # It comes to its end by itself, so the template's marks are known as such.
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert choice.message.role == "assistant" and choice.message.tool_calls is None
    assert "Paris" in choice.message.content and "<|" not in choice.message.content
    usage = greedy.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_stream_is_role_deltas_end_usage(chat, greedy):
    # open-webui#16377, kubeai#283
    *chunks, last = chat(stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and counts(last.usage) == counts(greedy.usage)
    assert all(chunk.usage is None and chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert joined(chunks) == greedy.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_the_clients_collector_of_streams_agrees(client, model, greedy):
    with client.chat.completions.stream(model=model, messages=MESSAGES, **GREEDY) as stream:
        collected = stream.get_final_completion()
    assert collected.choices[0].message.content == greedy.choices[0].message.content


def test_parts_are_text(chat, greedy):
    # llama.cpp#8367, langchaingo#667
    parts = [
        {**message, "content": [{"type": "text", "text": it} for it in (message["content"][:9], message["content"][9:])]}
        for message in MESSAGES
    ]
    assert chat(messages=parts).choices[0].message.content == greedy.choices[0].message.content


def test_one_bos(server, greedy):
    # llama-cpp-python#1501: the prompt is what the template writes, with one BOS at most.
    text = "".join(f"<|im_start|>{it['role']}\n{it['content']}<|im_end|>\n" for it in MESSAGES)
    status, body = server.post("/tokenize", {"content": text + "<|im_start|>assistant\n", "add_special": False})
    assert status == 200
    assert greedy.usage.prompt_tokens == len(body["tokens"])


def test_a_last_message_of_the_assistant_is_continued(chat):
    begun = [*MESSAGES, {"role": "assistant", "content": "The capital of France is"}]
    assert chat(messages=begun).choices[0].message.content.lstrip().startswith("Paris")


def test_stop_ends_the_text_before_it(chat, greedy):
    text = greedy.choices[0].message.content
    stop = text[len(text) // 2 - 3 : len(text) // 2 + 3]
    expected = text[: text.index(stop)]
    answer = chat(stop=[stop, "never seen"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (expected, "stop")
    assert joined(chat(stop=stop, stream=True)) == expected


def test_n_choices_and_seeds(chat):
    # llama-cpp-python#1906
    sampled = {"n": 3, "seed": 5, "temperature": 1.5, "max_completion_tokens": 10}
    texts = [choice.message.content for choice in chat(**sampled).choices]
    assert len(set(texts)) == 3
    chunks = list(chat(stream=True, **sampled))
    assert {index: joined(chunks, index)[:8] for index in range(3)} == {i: text[:8] for i, text in enumerate(texts)}


def test_logprobs_are_entries(chat, greedy):
    # llama.cpp#10733, vllm#4795
    (choice,) = chat(logprobs=True, top_logprobs=3).choices
    for entry in choice.logprobs.content:
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.top_logprobs[0].token == entry.token and len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
    assert "".join(entry.token for entry in choice.logprobs.content).startswith(greedy.choices[0].message.content)
    (choice,) = chat(logprobs=True).choices
    assert all(entry.top_logprobs == [] for entry in choice.logprobs.content)


@pytest.mark.parametrize(("param", "fields"), [case.values() for case in cases("bad_chat")], ids=json.dumps)
def test_wrong_values_are_bad_requests_that_name_the_field(refused, chat, param, fields):
    error = refused(openai.BadRequestError, 400, lambda: chat(**as_extra(fields)), CHAT)
    assert error.type == "invalid_request_error" and error.code
    assert error.param.startswith(param) and param in error.body["message"]


def as_extra(fields):
    """The client checks a few things itself; what it does not know or would refuse goes into the body as it is."""
    return {"extra_body": fields}


def test_conversation_beyond_the_context(refused, chat):
    # llama.cpp PR#15780, lmstudio#2339
    messages = [{"role": "user", "content": "word " * 2100}]
    error = refused(openai.BadRequestError, 400, lambda: chat(messages=messages, stream=True), CHAT)
    assert error.code == "context_length_exceeded" and error.param == "messages"
    assert error.body["n_ctx"] < error.body["n_prompt_tokens"]


def test_closing_a_stream_frees_its_lane(server, chat):
    # llama.cpp#24496
    cancelled = {"endpoint": "chat", "finish_reason": "cancelled"}
    before = server.metric("skippy_requests_finished_total", **cancelled)
    stream = chat(stream=True, max_completion_tokens=1500, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_until(lambda: server.metric("skippy_requests_finished_total", **cancelled) == before + 1, "rid of it")
    server.wait_until(lambda: server.metric("skippy_lanes_busy") == 0, "idle")
