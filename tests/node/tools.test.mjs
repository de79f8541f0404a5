// Tools and answers of a given form through the official client.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { all, cases, refused, serving } from "./support.mjs";

const CHAT = "/v1/chat/completions";
const it = serving("--lanes", "4");
const TOOLS = cases("tools");
const NAMES = TOOLS.map((tool) => tool.function.name);
const MESSAGES = [{ role: "user", content: "How will the weather be in Nineveh, and what shall be offered?" }];
const SEEDS = [1, 2, 3];

const chat = (more = {}) =>
  it.client.chat.completions.create({
    model: it.model, messages: MESSAGES, temperature: 1, seed: 1, max_completion_tokens: 300, ...more,
  });
const named = (name) => ({ type: "function", function: { name } });

/** Arguments that keep to the schema of the tool, told in JSON. */
function checkCall(call) {
  assert.equal(call.type, "function");
  assert.match(call.id, /^call_/);
  const told = JSON.parse(call.function.arguments);
  if (call.function.name === "weather") {
    assert.deepEqual(Object.keys(told).sort(), ["city", "days"]);
    assert.ok(["Jerusalem", "Nineveh", "Babylon"].includes(told.city) && told.days >= 1 && told.days <= 7);
  } else {
    assert.equal(call.function.name, "offering");
    assert.deepEqual(Object.keys(told).sort(), ["animal", "burnt"]);
    assert.ok(["ram", "dove"].includes(told.animal) && typeof told.burnt === "boolean");
  }
}

/** Calls put together from the deltas of a stream; id and name come once and first, the index always. */
function collect(chunks) {
  const calls = [];
  for (const { choices } of chunks) {
    for (const part of choices[0]?.delta.tool_calls ?? []) {
      assert.ok(Number.isInteger(part.index));
      if (calls[part.index]) {
        // codex#7517
        assert.ok(part.id === undefined && part.function.name === undefined, JSON.stringify(part));
        calls[part.index].function.arguments += part.function.arguments;
      } else {
        // litellm#33678: one after the other, from 0.
        assert.equal(part.index, calls.length);
        const { name, arguments: told = "" } = part.function;
        calls.push({ id: part.id, type: part.type, function: { name, arguments: told } });
      }
    }
  }
  return calls;
}

for (const name of NAMES) {
  test(`llama.cpp#26535: ${name}, called for by name, is called`, async () => {
    for (const seed of SEEDS) {
      const [choice] = (await chat({ tools: TOOLS, tool_choice: named(name), seed, parallel_tool_calls: false })).choices;
      assert.equal(choice.finish_reason, "tool_calls");
      assert.equal(choice.message.tool_calls.length, 1);
      assert.equal(choice.message.tool_calls[0].function.name, name);
      checkCall(choice.message.tool_calls[0]);
    }
  });
}

test("vllm#54808: with tool_choice required something is called", async () => {
  for (const seed of SEEDS) {
    const [choice] = (await chat({ tools: TOOLS, tool_choice: "required", seed, parallel_tool_calls: false })).choices;
    assert.equal(choice.finish_reason, "tool_calls");
    assert.equal(choice.message.tool_calls.length, 1);
    checkCall(choice.message.tool_calls[0]);
  }
});

test("with tool_choice none nothing is called", async () => {
  const [choice] = (await chat({ tools: TOOLS, tool_choice: "none", max_completion_tokens: 24 })).choices;
  assert.equal(choice.message.tool_calls, undefined);
  assert.notEqual(choice.finish_reason, "tool_calls");
  assert.ok(choice.message.content.length > 0);
});

test("with tool_choice auto the model is free, and what it calls is valid", async () => {
  for (const seed of SEEDS) {
    const [choice] = (await chat({ tools: TOOLS, seed, max_completion_tokens: 60 })).choices;
    const calls = [...(choice.message.tool_calls ?? [])];
    if (choice.finish_reason === "length") calls.pop();
    else assert.equal(choice.finish_reason === "tool_calls", calls.length > 0);
    calls.forEach(checkCall);
    assert.ok(choice.message.tool_calls || choice.message.content.length > 0);
  }
});

test("vllm PR#48852: calls of a stream, put together, are those of the answer in one piece", async () => {
  let several = 0;
  for (const seed of SEEDS) {
    const request = { tools: TOOLS, tool_choice: "required", seed };
    const [whole] = (await chat(request)).choices;
    const chunks = await all(chat({ ...request, stream: true }));
    const calls = collect(chunks);
    const ends = chunks.map((chunk) => chunk.choices[0].finish_reason).filter(Boolean);
    assert.deepEqual(ends, [whole.finish_reason]);
    // Nothing but the budget keeps this model from calling on and on; then the last call is cut.
    assert.ok(["tool_calls", "length"].includes(whole.finish_reason));
    calls.slice(0, whole.finish_reason === "length" ? -1 : undefined).forEach(checkCall);
    const bare = ({ type, function: called }) => ({ type, function: called });
    assert.deepEqual(calls.map(bare), whole.message.tool_calls.map(bare));
    assert.equal(new Set(calls.map((call) => call.id)).size, calls.length);
    several += calls.length > 1 ? 1 : 0;
  }
  assert.ok(several > 0);
});

test("the client's own collector of streams agrees", async () => {
  const request = { model: it.model, messages: MESSAGES, tools: TOOLS, tool_choice: named("offering"), seed: 3, parallel_tool_calls: false };
  const runner = it.client.chat.completions.stream({ ...request, max_completion_tokens: 300 });
  const [choice] = (await runner.finalChatCompletion()).choices;
  assert.equal(choice.finish_reason, "tool_calls");
  choice.message.tool_calls.forEach(checkCall);
});

test("what a tool answered goes back to the model", async () => {
  const [choice] = (await chat({ tools: TOOLS, tool_choice: named("weather"), parallel_tool_calls: false })).choices;
  const [call] = choice.message.tool_calls;
  const answered = [
    ...MESSAGES,
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: call.id, content: "Rain for forty days." },
  ];
  const before = await chat({ tools: TOOLS, tool_choice: "none", max_completion_tokens: 8 });
  const after = await chat({ messages: answered, tools: TOOLS, tool_choice: "none", max_completion_tokens: 8 });
  assert.ok(after.usage.prompt_tokens > before.usage.prompt_tokens + 10);
});

const SCHEMA = {
  type: "object",
  properties: {
    animal: { enum: ["ram", "dove", "bullock"] },
    count: { type: "integer", minimum: 0, maximum: 12 },
    spotless: { type: "boolean" },
    offerings: { type: "array", items: { enum: ["burnt", "peace", "sin"] }, minItems: 1, maxItems: 3 },
  },
  required: ["animal", "count", "spotless", "offerings"],
  additionalProperties: false,
};

test("an answer keeps to the schema asked for, streamed or not", async () => {
  for (const seed of SEEDS) {
    const request = { seed, response_format: { type: "json_schema", json_schema: { name: "offer", strict: true, schema: SCHEMA } } };
    const [choice] = (await chat(request)).choices;
    const told = JSON.parse(choice.message.content);
    assert.deepEqual(Object.keys(told).sort(), Object.keys(SCHEMA.properties).sort());
    assert.ok(SCHEMA.properties.animal.enum.includes(told.animal) && typeof told.spotless === "boolean");
    assert.ok(Number.isInteger(told.count) && told.count >= 0 && told.count <= 12);
    assert.ok(told.offerings.length >= 1 && told.offerings.length <= 3);
    assert.equal(choice.finish_reason, "stop");
    const chunks = await all(chat({ ...request, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), choice.message.content);
  }
});

test("json_object gives an object, or as much of one as the budget allows", async () => {
  const [choice] = (await chat({ response_format: { type: "json_object" } })).choices;
  assert.match(choice.message.content, /^\s*\{/);
  if (choice.finish_reason === "stop") assert.equal(typeof JSON.parse(choice.message.content), "object");
});

test("a grammar of the caller's holds", async () => {
  const grammar = 'root ::= ("yea" | "nay") ", " [a-z]{3}';
  for (const seed of SEEDS) {
    const [choice] = (await chat({ grammar, seed })).choices;
    assert.match(choice.message.content, /^(yea|nay), [a-z]{3}$/);
    assert.equal(choice.finish_reason, "stop");
  }
});

for (const { param, fields, tools } of cases("bad_structured")) {
  test(`llama.cpp#19051, llama.cpp#23463: ${JSON.stringify(fields)} is a bad request that names ${param}`, async () => {
    const call = () => chat({ ...(tools ? { tools: TOOLS } : {}), ...fields });
    const error = await refused(it.server, OpenAI.BadRequestError, CHAT, call);
    assert.deepEqual([error.status, error.type], [400, "invalid_request_error"]);
    assert.ok(error.param.startsWith(param) && error.code && error.message.includes(param), error.message);
  });
}

test("the server answers after all that", async () => {
  assert.equal((await chat({ max_completion_tokens: 4, ignore_eos: true })).usage.completion_tokens, 4);
  await it.server.untilIdle();
});
