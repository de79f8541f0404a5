"""The official OpenAI Python client against a real server process."""

import asyncio
import json

import openai
import pytest
from conftest import CONTEXT, connect
from server import cases, counts

# The model is sure how these go on. Greedy text of a less certain prompt may differ when requests share a batch: ggml may
# sum in another order for another number of rows, and near ties then fall the other way.
PROMPT = "1, 2, 3, 4, 5, 6,"
COUNTING = [", ".join(str(number) for number in range(start, start + 6)) + "," for start in (1, 10, 20, 30, 40, 50)]
GREEDY = {"temperature": 0, "max_tokens": 24}


def text_of(completion):
    return completion.choices[0].text


@pytest.fixture(scope="module")
def greedy(client, model):
    """What the model says to PROMPT, greedily."""
    return client.completions.create(model=model, prompt=PROMPT, **GREEDY)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_models_list_names_one_model(client, server):
    models = client.models.list().data
    assert len(models) == 1
    assert models[0].object == "model" and models[0].created > 0
    assert models[0].id in server.get("/v1/models")[1]


def test_model_can_be_retrieved(client, model):
    assert client.models.retrieve(model).id == model


def test_completion_has_the_shape_and_counts_of_the_api(greedy, model):
    assert greedy.object == "text_completion"
    assert greedy.id.startswith("cmpl-")
    assert greedy.model == model
    assert greedy.created > 0
    (choice,) = greedy.choices
    assert choice.index == 0 and choice.finish_reason in ("length", "stop") and choice.logprobs is None
    usage = greedy.usage
    assert usage.prompt_tokens > 3
    assert 0 < usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert choice.text.startswith(" 7, 8, 9, 10,")


def test_max_tokens_is_kept_and_defaults_to_16(client, model):
    for asked, given in [({"max_tokens": 1}, 1), ({"max_tokens": 5}, 5), ({}, 16), ({"max_tokens": None}, 16)]:
        answer = client.completions.create(model=model, prompt="Once upon a time,", temperature=0, **asked)
        assert answer.usage.completion_tokens == given
        assert answer.choices[0].finish_reason == "length"


def test_stream_says_the_same_in_pieces(client, model, greedy):
    chunks = list(client.completions.create(model=model, prompt=PROMPT, stream=True, **GREEDY))
    assert "".join(text_of(chunk) for chunk in chunks) == text_of(greedy)
    assert len(chunks) > 5
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == greedy.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_ends_with_usage_when_asked(client, model, greedy):
    stream = client.completions.create(
        model=model, prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *chunks, last = stream
    assert last.choices == []
    assert counts(last.usage) == counts(greedy.usage)
    assert all(chunk.usage is None for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks].count(None) == len(chunks) - 1


def test_seed_decides_the_sample(client, model):
    def sample(seed):
        return text_of(
            client.completions.create(model=model, prompt="My favourite", temperature=1.0, seed=seed, max_tokens=32)
        )

    first = sample(7)
    assert sample(7) == first
    assert len({first, sample(8), sample(9)}) == 3


def test_stop_ends_the_text_before_the_stop_string(client, model, greedy):
    text = text_of(greedy)
    # Starts and ends inside words, so that it lies across token boundaries.
    stop = text[len(text) // 2 - 3 : len(text) // 2 + 3]
    expected = text[: text.index(stop)]
    answer = client.completions.create(model=model, prompt=PROMPT, stop=[stop, "never seen"], **GREEDY)
    assert text_of(answer) == expected
    assert answer.choices[0].finish_reason == "stop"

    chunks = list(client.completions.create(model=model, prompt=PROMPT, stop=stop, stream=True, **GREEDY))
    assert "".join(text_of(chunk) for chunk in chunks) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


def test_logprobs_are_parallel_arrays(client, model, greedy):
    answer = client.completions.create(model=model, prompt=PROMPT, logprobs=3, **GREEDY)
    logprobs = answer.choices[0].logprobs
    n = answer.usage.completion_tokens
    assert [len(it) for it in (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)] \
        == [n] * 4
    assert "".join(logprobs.tokens) == text_of(answer) == text_of(greedy)
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert len(top) == 3
        # Greedy: the token that was chosen is the likeliest.
        assert top[token] == logprob == max(top.values()) <= 0
    steps = [after - before for before, after in zip(logprobs.text_offset, logprobs.text_offset[1:])]
    assert steps == [len(token) for token in logprobs.tokens[:-1]]


def test_streamed_logprobs_equal_the_others(client, model):
    whole = client.completions.create(model=model, prompt=PROMPT, logprobs=2, **GREEDY).choices[0].logprobs
    chunks = [
        chunk.choices[0].logprobs
        for chunk in client.completions.create(model=model, prompt=PROMPT, logprobs=2, stream=True, **GREEDY)
        if chunk.choices[0].logprobs
    ]
    joined = {field: [value for chunk in chunks for value in getattr(chunk, field)] for field in whole.model_fields_set}
    assert joined.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert joined["tokens"] == whole.tokens
    assert joined["text_offset"] == whole.text_offset
    assert joined["token_logprobs"] == pytest.approx(whole.token_logprobs, abs=1e-3)
    assert [list(top) for top in joined["top_logprobs"]] == [list(top) for top in whole.top_logprobs]


def test_echo_puts_the_prompt_before_the_answer(client, model, greedy):
    answer = client.completions.create(model=model, prompt=PROMPT, echo=True, **GREEDY)
    assert text_of(answer) == PROMPT + text_of(greedy)
    assert counts(answer.usage) == counts(greedy.usage)


def test_echo_with_logprobs_scores_the_prompt(client, model):
    # vllm#6521: `echo` with `max_tokens: 0` is how a prompt is scored.
    answer = client.completions.create(model=model, prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)
    assert text_of(answer) == PROMPT
    assert answer.usage.completion_tokens == 0
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == answer.usage.prompt_tokens
    assert logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in logprobs.token_logprobs[1:])


def test_token_array_prompt_equals_its_text(client, server, model, greedy):
    status, body = server.post("/tokenize", {"content": PROMPT, "add_special": True})
    assert status == 200
    tokens = body["tokens"]
    assert len(tokens) == greedy.usage.prompt_tokens
    answer = client.completions.create(model=model, prompt=tokens, **GREEDY)
    assert text_of(answer) == text_of(greedy)
    assert counts(answer.usage) == counts(greedy.usage)


def test_n_gives_as_many_choices(client, model):
    # llama-cpp-python#1906: `n` accepted and ignored, index always 0.
    request = {"model": model, "prompt": "My favourite", "n": 3, "seed": 5, "max_tokens": 24, "temperature": 1.0}
    answer = client.completions.create(**request)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens <= 72

    texts, finished = {0: "", 1: "", 2: ""}, []
    for chunk in client.completions.create(stream=True, **request):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason:
            finished.append(choice.index)
    assert sorted(finished) == [0, 1, 2]
    assert len(set(texts.values())) == 3


def test_several_prompts_are_answered_in_order(client, model):
    answer = client.completions.create(model=model, prompt=COUNTING[1:3], temperature=0, max_tokens=12)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith(" 16, 17, 18")
    assert answer.choices[1].text.startswith(" 26, 27, 28")


def test_logit_bias_bans_a_token(client, server, model, greedy):
    first = client.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=1, logprobs=1)
    status, body = server.post("/tokenize", {"content": text_of(first), "add_special": False})
    assert status == 200 and len(body["tokens"]) == 1
    banned = client.completions.create(
        model=model, prompt=PROMPT, temperature=0, max_tokens=1, logit_bias={str(body["tokens"][0]): -100}
    )
    assert text_of(banned) != text_of(first)


def test_many_at_once_say_what_each_says_alone(client, server, model):
    request = {"model": model, "temperature": 0, "max_tokens": 12}
    alone = [text_of(client.completions.create(prompt=prompt, **request)) for prompt in COUNTING]

    async def together():
        async with connect(server, openai.AsyncOpenAI) as many:
            calls = [many.completions.create(prompt=prompt, **request) for prompt in COUNTING]
            return [text_of(answer) for answer in await asyncio.gather(*calls)]

    assert asyncio.run(together()) == alone


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "fields"), [case.values() for case in cases("bad_completions")], ids=json.dumps
)
def test_wrong_values_are_bad_requests_that_name_the_field(refused, client, model, param, fields):
    request = {"model": model, "prompt": PROMPT, "max_tokens": 4, **fields}
    error = refused(openai.BadRequestError, 400, lambda: client.completions.create(**request))
    assert error.type == "invalid_request_error"
    assert error.param == param
    assert error.code
    assert param in error.body["message"]


def test_prompt_beyond_the_context_is_a_bad_request_with_both_numbers(refused, client, model):
    # llama.cpp PR#15780
    prompt = "word " * (CONTEXT + 100)
    error = refused(openai.BadRequestError, 400, lambda: client.completions.create(model=model, prompt=prompt))
    assert error.code == "context_length_exceeded"
    assert error.body["n_ctx"] <= CONTEXT < error.body["n_prompt_tokens"]


def test_unknown_model_is_not_found(refused, client):
    error = refused(openai.NotFoundError, 404, lambda: client.completions.create(model="gpt-none", prompt=PROMPT))
    assert error.code == "model_not_found"


def test_unknown_route_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="any", input="text")
    assert caught.value.type == "invalid_request_error"


def test_server_answers_after_all_that_and_is_idle_then(client, server, model, greedy):
    assert text_of(client.completions.create(model=model, prompt=PROMPT, **GREEDY)) == text_of(greedy)
    for gauge in ("skippy_lanes_busy", "skippy_requests_in_flight", "skippy_requests_queued", "skippy_kv_cells_used"):
        server.wait_until(lambda: server.metric(gauge) == 0, f"idle by {gauge}")


# -- clients that leave ------------------------------------------------------------------------------------------------


def test_closing_a_stream_frees_its_lane(client, server, model):
    # llama.cpp#24496
    cancelled = {"endpoint": "completions", "finish_reason": "cancelled"}
    before = server.metric("skippy_requests_finished_total", **cancelled)
    tokens_before = server.metric("skippy_generation_tokens_total")
    streams = [
        client.completions.create(
            model=model, prompt=PROMPT, stream=True, max_tokens=CONTEXT - 100, extra_body={"ignore_eos": True}
        )
        for _ in range(2)
    ]
    for stream in streams:
        next(iter(stream))
    assert server.metric("skippy_lanes_busy") == 2
    for stream in streams:
        stream.close()
    server.wait_until(lambda: server.metric("skippy_lanes_busy") == 0, "rid of the closed streams")
    server.wait_until(lambda: server.metric("skippy_requests_queued") == 0, "rid of the queue")
    assert server.metric("skippy_requests_finished_total", **cancelled) == before + 2
    assert server.metric("skippy_generation_tokens_total") - tokens_before < 2 * (CONTEXT - 100)


def test_closing_a_queued_request_leaves_the_running_ones_alone(server, model):
    # ik_llama.cpp#1929
    async def scenario():
        async with connect(server, openai.AsyncOpenAI) as many:

            def start():
                return many.completions.create(
                    model=model, prompt=PROMPT, temperature=0, max_tokens=80, stream=True,
                    extra_body={"ignore_eos": True},
                )

            running = [await start() for _ in range(2)]
            queued = asyncio.create_task(start())
            await until(lambda: server.metric("skippy_requests_queued") == 1)
            queued.cancel()
            await until(lambda: server.metric("skippy_requests_queued") == 0)
            return [[chunk async for chunk in stream] for stream in running]

    async def until(condition):
        async def ask():
            while not await asyncio.to_thread(condition):
                pass

        await asyncio.wait_for(ask(), 30)

    for chunks in asyncio.run(scenario()):
        assert chunks[-1].choices[0].finish_reason == "length"
        assert "".join(text_of(chunk) for chunk in chunks).startswith(" 7, 8, 9, 10,")
