// Text completions through the official client.

import assert from "node:assert/strict";
import { test } from "node:test";
import { all, serving } from "./support.mjs";

const it = serving("--lanes", "4");
const PROMPT = "And it came to pass";
const GREEDY = { prompt: PROMPT, temperature: 0, max_tokens: 24 };

const complete = (more = {}) => it.client.completions.create({ model: it.model, ...GREEDY, ...more });
const streamed = (more = {}) => all(complete({ stream: true, ...more }));
const joined = (chunks, index = 0) =>
  chunks.flatMap((chunk) => chunk.choices.filter((choice) => choice.index === index).map((choice) => choice.text)).join("");

test("models are listed and retrieved", async () => {
  const models = await all(it.client.models.list());
  assert.equal(models.length, 1);
  assert.equal(models[0].object, "model");
  assert.deepEqual(await it.client.models.retrieve(models[0].id), models[0]);
});

test("an answer has the shape and the counts of the API", async () => {
  const answer = await complete();
  assert.equal(answer.object, "text_completion");
  assert.match(answer.id, /^cmpl-/);
  assert.equal(answer.model, it.model);
  const [choice, ...others] = answer.choices;
  assert.deepEqual(others, []);
  assert.deepEqual([choice.index, choice.finish_reason, choice.logprobs], [0, "length", null]);
  assert.ok(choice.text.length > 24);
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.ok(prompt_tokens > 3);
  assert.deepEqual([completion_tokens, total_tokens], [24, prompt_tokens + 24]);
});

test("a stream says the same, ends once, and tells its usage when asked", async () => {
  const whole = await complete();
  const chunks = await streamed();
  assert.equal(joined(chunks), whole.choices[0].text);
  assert.ok(chunks.every((chunk) => chunk.usage == null && chunk.id === chunks[0].id));
  const ends = chunks.map((chunk) => chunk.choices[0].finish_reason).filter((reason) => reason !== null);
  assert.deepEqual(ends, ["length"]);

  const counted = await streamed({ stream_options: { include_usage: true } });
  const last = counted.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  assert.ok(counted.every((chunk) => chunk.usage === null));
});

test("a stop string ends the text before it", async () => {
  const { text } = (await complete()).choices[0];
  const stop = text.slice(text.length / 2 - 3, text.length / 2 + 3);
  const expected = text.slice(0, text.indexOf(stop));
  for (const asked of [stop, [stop, "never seen"]]) {
    const [choice] = (await complete({ stop: asked })).choices;
    assert.deepEqual([choice.text, choice.finish_reason], [expected, "stop"]);
    const chunks = await streamed({ stop: asked });
    assert.deepEqual([joined(chunks), chunks.at(-1).choices[0].finish_reason], [expected, "stop"]);
  }
});

test("llama-cpp-python#1906: n choices, told apart by index, with seeds of their own", async () => {
  const sampled = { n: 3, seed: 11, temperature: 0.9, ignore_eos: true };
  const answer = await complete(sampled);
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
  const texts = answer.choices.map((choice) => choice.text);
  assert.equal(new Set(texts).size, 3);
  assert.equal(answer.usage.completion_tokens, 72);
  const chunks = await streamed(sampled);
  assert.deepEqual([0, 1, 2].map((index) => joined(chunks, index)), texts);
});

test("llama.cpp#10733: logprobs are parallel arrays, streamed and not", async () => {
  const [choice] = (await complete({ logprobs: 2 })).choices;
  const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
  for (const array of [tokens, token_logprobs, top_logprobs, text_offset]) assert.equal(array.length, 24);
  assert.equal(tokens.join(""), choice.text);
  tokens.forEach((token, i) => {
    assert.ok(token_logprobs[i] <= 0);
    assert.equal(top_logprobs[i][token], token_logprobs[i]);
  });
  const parts = (await streamed({ logprobs: 2 })).map((chunk) => chunk.choices[0].logprobs).filter(Boolean);
  assert.deepEqual(parts.flatMap((part) => part.tokens), tokens);
  assert.deepEqual(parts.flatMap((part) => part.text_offset), text_offset);
});

test("vllm#6521: echo scores a prompt without generating", async () => {
  const answer = await complete({ echo: true, logprobs: 1, max_tokens: 0 });
  assert.equal(answer.choices[0].text, PROMPT);
  assert.equal(answer.usage.completion_tokens, 0);
  const [first, ...rest] = answer.choices[0].logprobs.token_logprobs;
  assert.equal(first, null);
  assert.ok(rest.length > 0 && rest.every((logprob) => logprob <= 0));
});

test("prompts as text, as tokens and in lists mean the same", async () => {
  const body = JSON.stringify({ content: PROMPT, add_special: true });
  const headers = { "Content-Type": "application/json" };
  const { tokens } = await (await fetch(`${it.server.url}/tokenize`, { method: "POST", headers, body })).json();
  const expected = (await complete()).choices[0].text;
  assert.equal((await complete({ prompt: tokens })).choices[0].text, expected);
  const both = await complete({ prompt: ["In the beginning", PROMPT] });
  assert.deepEqual(both.choices.map((choice) => choice.index), [0, 1]);
  assert.equal(both.choices[1].text, expected);
});
