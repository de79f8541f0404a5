// Conversations through the official client.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { all, cases, refused, serving } from "./support.mjs";

const CHAT = "/v1/chat/completions";
const it = serving("--lanes", "4");
const MESSAGES = [
  { role: "system", content: "You speak as the King James Bible does." },
  { role: "user", content: "What came to pass?" },
];
const GREEDY = { messages: MESSAGES, temperature: 0, max_completion_tokens: 24 };

const chat = (more = {}) => it.client.chat.completions.create({ model: it.model, ...GREEDY, ...more });
const streamed = (more = {}) => all(chat({ stream: true, ...more }));
const choicesOf = (chunks, index = 0) => chunks.flatMap((chunk) => chunk.choices.filter((choice) => choice.index === index));
const joined = (chunks, index = 0) => choicesOf(chunks, index).map((choice) => choice.delta.content ?? "").join("");
const contentOf = (answer) => answer.choices[0].message.content;

test("an answer has the shape and the counts of the API", async () => {
  const answer = await chat({ ignore_eos: true });
  assert.equal(answer.object, "chat.completion");
  assert.match(answer.id, /^chatcmpl-/);
  assert.equal(answer.model, it.model);
  const [choice, ...others] = answer.choices;
  assert.deepEqual(others, []);
  assert.deepEqual([choice.index, choice.finish_reason, choice.logprobs], [0, "length", null]);
  assert.equal(choice.message.role, "assistant");
  assert.ok(choice.message.content.length > 10);
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.ok(prompt_tokens > 10);
  assert.deepEqual([completion_tokens, total_tokens], [24, prompt_tokens + 24]);
});

test("open-webui#16377: a stream is role, deltas, one end, usage", async () => {
  const whole = await chat();
  const chunks = await streamed({ stream_options: { include_usage: true } });
  const last = chunks.pop();
  assert.deepEqual([last.choices, last.usage.total_tokens], [[], whole.usage.total_tokens]);
  assert.ok(chunks.every((chunk) => chunk.usage === null && chunk.object === "chat.completion.chunk"));
  assert.equal(new Set([...chunks, last].map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(chunks.map((chunk) => chunk.choices[0].delta.role).filter(Boolean), ["assistant"]);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(joined(chunks), contentOf(whole));
  const ends = chunks.map((chunk) => chunk.choices[0].finish_reason);
  assert.equal(ends.pop(), whole.choices[0].finish_reason);
  assert.ok(ends.every((reason) => reason === null));
});

test("the client's own collector of streams agrees", async () => {
  const runner = it.client.chat.completions.stream({ model: it.model, ...GREEDY });
  const whole = await chat();
  const collected = await runner.finalChatCompletion();
  assert.deepEqual(collected.choices[0].message.content, contentOf(whole));
  assert.equal(collected.choices[0].finish_reason, whole.choices[0].finish_reason);
});

test("content as parts is content as text", async () => {
  const parts = MESSAGES.map(({ role, content }) => ({
    role,
    content: [content.slice(0, 8), content.slice(8)].map((text) => ({ type: "text", text })),
  }));
  assert.equal(contentOf(await chat({ messages: parts })), contentOf(await chat()));
});

test("a conversation goes on, and its roles count", async () => {
  const first = await chat();
  const longer = [...MESSAGES, first.choices[0].message, { role: "user", content: "And then?" }];
  const second = await chat({ messages: longer });
  assert.ok(second.usage.prompt_tokens > first.usage.prompt_tokens);
  const developer = [{ ...MESSAGES[0], role: "developer" }, MESSAGES[1]];
  assert.equal((await chat({ messages: developer })).usage.prompt_tokens, first.usage.prompt_tokens);
  assert.notEqual((await chat({ messages: MESSAGES.slice(1) })).usage.prompt_tokens, first.usage.prompt_tokens);
});

test("a stop string ends the text before it", async () => {
  const text = contentOf(await chat());
  const stop = text.slice(text.length / 2 - 3, text.length / 2 + 3);
  const expected = text.slice(0, text.indexOf(stop));
  const [choice] = (await chat({ stop })).choices;
  assert.deepEqual([choice.message.content, choice.finish_reason], [expected, "stop"]);
  const chunks = await streamed({ stop: [stop, "never seen"] });
  assert.deepEqual([joined(chunks), chunks.at(-1).choices[0].finish_reason], [expected, "stop"]);
});

test("llama-cpp-python#1906: n choices with seeds of their own", async () => {
  const sampled = { n: 3, seed: 11, temperature: 0.9, ignore_eos: true };
  const answer = await chat(sampled);
  const texts = answer.choices.map((choice) => choice.message.content);
  assert.equal(new Set(texts).size, 3);
  assert.equal(answer.usage.completion_tokens, 72);
  const chunks = await streamed(sampled);
  assert.deepEqual([0, 1, 2].map((index) => joined(chunks, index)), texts);
});

test("llama.cpp#10733: logprobs are entries with bytes and alternatives, streamed and not", async () => {
  const [choice] = (await chat({ logprobs: true, top_logprobs: 2, ignore_eos: true })).choices;
  const { content } = choice.logprobs;
  assert.equal(content.length, 24);
  for (const entry of content) {
    assert.ok(entry.logprob <= 0 && entry.top_logprobs.length === 2);
    assert.deepEqual(entry.bytes, [...Buffer.from(entry.token)]);
    assert.equal(entry.top_logprobs[0].token, entry.token);
  }
  const chunks = await streamed({ logprobs: true, top_logprobs: 2, ignore_eos: true });
  const parts = chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []);
  assert.deepEqual(parts.map((entry) => entry.token), content.map((entry) => entry.token));
  // vllm#4795: without alternatives, the chosen token still is there.
  const [bare] = (await chat({ logprobs: true })).choices;
  assert.deepEqual(bare.logprobs.content[0].top_logprobs, []);
});

test("llama.cpp#13700: the newer name of max_tokens wins", async () => {
  const counts = async (more) => (await chat({ ignore_eos: true, ...more })).usage.completion_tokens;
  assert.equal(await counts({ max_completion_tokens: 3, max_tokens: 7 }), 3);
  assert.equal(await counts({ max_completion_tokens: null, max_tokens: 7 }), 7);
});

for (const { param, fields } of cases("bad_chat")) {
  test(`${JSON.stringify(fields)} is a bad request that names ${param}`, async () => {
    const error = await refused(it.server, OpenAI.BadRequestError, CHAT, () => chat(fields));
    assert.deepEqual([error.status, error.type], [400, "invalid_request_error"]);
    assert.ok(error.param.startsWith(param) && error.code && error.message.includes(param), error.message);
  });
}

test("llama.cpp PR#15780: a conversation beyond the context tells both numbers", async () => {
  const messages = [{ role: "user", content: "word ".repeat(2000) }];
  const error = await refused(it.server, OpenAI.BadRequestError, CHAT, () => chat({ messages, stream: true }));
  assert.deepEqual([error.code, error.param], ["context_length_exceeded", "messages"]);
  assert.ok(error.error.n_ctx <= 1024 && error.error.n_prompt_tokens >= 2000);
});

test("llama.cpp#24496: leaving the loop over a stream ends it", async () => {
  const cancelled = () => it.server.metric("skippy_requests_finished_total", { finish_reason: "cancelled" });
  const before = await cancelled();
  for await (const chunk of await chat({ stream: true, max_completion_tokens: 900, ignore_eos: true })) {
    assert.ok(chunk.choices);
    break;
  }
  await it.server.until(async () => (await cancelled()) === before + 1, "told to cancel");
  await it.server.untilIdle();
});
