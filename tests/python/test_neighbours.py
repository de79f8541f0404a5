"""Greedy answers are the same alone, among fifteen neighbours, and when asked again; nothing of one request shows in another."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from raw import COMPLETIONS
from server import ASSETS, BUNDLED, PACKAGE, Server

LANES = 16
PROMPTS = {
    "bundled": json.loads((ASSETS / "prompts.json").read_text()),
    "smollm2": [
        "The capital of France is", "Once upon a time, there was a", "Water boils at", "My favourite book is about",
        "def fibonacci(n):", "The three primary colours are", "To bake bread you need", "In 1969, the first man",
        "Dear Sir or Madam,", "The difference between a cat and a dog is", "SELECT name FROM", "The sun rises in the",
        "An apple a day", "import numpy as np\n", "The best way to learn a language is", "Breaking news:",
    ],
}
SETTINGS = {
    "bundled": ["--cache-type-k", "f32", "--cache-type-v", "f32"],
    "smollm2": [],
}


@pytest.fixture(scope="module", params=["bundled", "smollm2"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def server(kind):
    package = BUNDLED if kind == "bundled" else PACKAGE
    server = Server("--lanes", str(LANES), "--ctx-size", "512", "--threads", "1", *SETTINGS[kind], package=package)
    yield server
    server.must_be_well()


def ask(server, prompt, **more):
    request = {"prompt": prompt, "temperature": 0, "max_tokens": 24, **more}
    status, answer = server.post(COMPLETIONS, request)
    assert status == 200, answer
    return answer


def at_once(call, arguments):
    with ThreadPoolExecutor(len(arguments)) as crowd:
        return list(crowd.map(call, arguments))


def test_greedy_text_is_the_same_alone_and_among_fifteen(server, kind):
    prompts = PROMPTS[kind][:LANES]
    assert len(prompts) == LANES

    def say(prompt):
        if kind == "bundled":
            # Its engine computes every row by itself, so that not even a bit differs.
            return ask(server, prompt, logprobs=1)["choices"][0]
        return ask(server, prompt)["choices"][0]["text"]

    alone = [say(prompt) for prompt in prompts]
    # Twice: the second time, whatever the server kept of the first is used.
    for _ in range(2):
        assert at_once(say, prompts) == alone


# Words that no text holds by chance.
MARKERS = ["Quovadis", "Zimtblum", "Harkonnel", "Brimofax", "Yttervik", "Plumdust", "Oxenwhirl", "Fjordlamp"]
OPENING = "A list of words, each of them many times over.\n"


def test_llama_cpp_27148_conversations_hold_no_words_of_others(server, kind):
    # Each session has a word that it says over and over. All begin alike, all grow, most of them exist twice, and all run at
    # once, so that what is kept of one lies ready for the others.
    def session(i):
        word = MARKERS[i % len(MARKERS)]
        others = set(MARKERS) - {word}
        text = OPENING + f"{word}, " * 4
        answers = []
        for _ in range(2):
            answer = ask(server, text.rstrip(), max_tokens=8)["choices"][0]["text"]
            assert not any(other in answer for other in others), f"{word}: {answer}"
            answers.append(answer)
            text += f"{word}, " * 2
        return answers

    alone = session(3)
    if kind == "smollm2":
        assert all(MARKERS[3] in answer for answer in alone), alone
    told = at_once(session, range(len(MARKERS) + LANES // 2 - 2))
    for i, answers in enumerate(told):
        assert answers == told[i % len(MARKERS)]
    assert told[3] == alone
