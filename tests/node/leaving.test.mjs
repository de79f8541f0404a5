// Clients that leave: an aborted call ends its generation, wherever it was.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { serving } from "./support.mjs";

// Answers that would take a minute.
const BUDGET = 60_000;
const it = serving("--lanes", "2", "--ctx-size", "65536");

const request = (more = {}) => ({ model: it.model, prompt: "And", max_tokens: BUDGET, ignore_eos: true, ...more });
const count = (labels) => it.server.metric("skippy_requests_finished_total", labels);

/** Runs `leave`, after which `times` more requests must count as cancelled and nothing may be held any more. */
async function cancels(times, leave) {
  const [cancelled, tokens] = [await count({ finish_reason: "cancelled" }), await it.server.metric("skippy_generation_tokens_total")];
  await leave();
  await it.server.until(async () => (await count({ finish_reason: "cancelled" })) === cancelled + times, "told to cancel");
  await it.server.untilIdle();
  await it.server.until(async () => (await it.server.metric("skippy_http_requests_in_flight")) === 0, "rid of the bodies");
  assert.ok((await it.server.metric("skippy_generation_tokens_total")) - tokens < times * BUDGET);
}

test("llama.cpp#24496: aborting a stream by its controller", () =>
  cancels(1, async () => {
    const stream = await it.client.completions.create(request({ stream: true }));
    for await (const chunk of stream) {
      assert.ok(chunk.choices);
      stream.controller.abort();
    }
  }));

test("leaving the loop over a stream", () =>
  cancels(1, async () => {
    for await (const chunk of await it.client.completions.create(request({ stream: true }))) {
      assert.ok(chunk.choices);
      break;
    }
  }));

test("llama.cpp#11720: an AbortSignal on an answer in one piece", () =>
  cancels(1, async () => {
    const control = new AbortController();
    const call = it.client.completions.create(request(), { signal: control.signal });
    await it.server.until(async () => (await it.server.metric("skippy_lanes_busy")) === 1, "busy");
    control.abort();
    await assert.rejects(call, OpenAI.APIUserAbortError);
  }));

test("ik_llama.cpp#1929, llama.cpp#13262: leaving the queue touches no other and costs no step", () =>
  cancels(3, async () => {
    const running = [];
    for (let i = 0; i < 2; i++) running.push(await it.client.completions.create(request({ stream: true })));
    const prompts = await it.server.metric("skippy_prompt_tokens_total");
    const control = new AbortController();
    const queued = it.client.completions.create(request(), { signal: control.signal });
    await it.server.until(async () => (await it.server.metric("skippy_requests_queued")) === 1, "holding a queue");
    control.abort();
    await assert.rejects(queued, OpenAI.APIUserAbortError);
    await it.server.until(async () => (await it.server.metric("skippy_requests_queued")) === 0, "rid of the queue");
    assert.equal(await it.server.metric("skippy_lanes_busy"), 2);
    assert.equal(await it.server.metric("skippy_prompt_tokens_total"), prompts);
    for (const stream of running) {
      for await (const chunk of stream) {
        assert.ok(chunk.choices);
        stream.controller.abort();
      }
    }
  }));

test("a client's own time limit ends the generation, and it tries again as it is told to", () =>
  cancels(2, async () => {
    const hasty = it.server.client({ timeout: 400, maxRetries: 1 });
    await assert.rejects(hasty.completions.create(request()), OpenAI.APIConnectionTimeoutError);
  }));
