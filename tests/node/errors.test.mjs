// Errors: the right class, every field filled in, and no request repeated that would fail again.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { Server, all, cases, refused, serving } from "./support.mjs";

const COMPLETIONS = "/v1/completions";
const it = serving("--lanes", "2");
const complete = (more) => it.client.completions.create({ model: it.model, prompt: "And", max_tokens: 4, ...more });

for (const { param, fields } of cases("bad_completions")) {
  test(`${JSON.stringify(fields)} is a bad request that names ${param}`, async () => {
    const error = await refused(it.server, OpenAI.BadRequestError, COMPLETIONS, () => complete(fields));
    assert.deepEqual([error.status, error.type, error.param], [400, "invalid_request_error", param]);
    assert.ok(error.code && error.requestID && error.message.includes(param), error.message);
  });
}

test("llama.cpp PR#15780: a prompt beyond the context tells both numbers", async () => {
  const call = () => complete({ prompt: "word ".repeat(2000) });
  const error = await refused(it.server, OpenAI.BadRequestError, COMPLETIONS, call);
  assert.equal(error.code, "context_length_exceeded");
  assert.ok(error.error.n_ctx <= 1024 && error.error.n_prompt_tokens >= 2000, JSON.stringify(error.error));
  // lmstudio#2339: no stream begins.
  const stream = () => complete({ prompt: "word ".repeat(2000), stream: true });
  await refused(it.server, OpenAI.BadRequestError, COMPLETIONS, stream);
});

test("an unknown model is not found", async () => {
  const error = await refused(it.server, OpenAI.NotFoundError, COMPLETIONS, () => complete({ model: "gpt-none" }));
  assert.deepEqual([error.code, error.param], ["model_not_found", "model"]);
  await assert.rejects(it.client.models.retrieve("gpt-none"), OpenAI.NotFoundError);
});

test("endpoints that are not there say what is", async () => {
  const call = () => it.client.embeddings.create({ model: it.model, input: "text" });
  const error = await refused(it.server, OpenAI.NotFoundError, "unsupported", call);
  assert.match(error.message, /POST \/v1\/completions/);
});

test("null means absent", async () => {
  const nulls = Object.fromEntries(["stop", "temperature", "n", "logprobs", "stream", "seed", "user"].map((f) => [f, null]));
  assert.equal((await complete(nulls)).usage.completion_tokens, 4);
});

test("another key is refused, once", async () => {
  const server = await Server.start("--api-key", "right-key");
  try {
    assert.equal((await all(server.client({ apiKey: "right-key" }).models.list())).length, 1);
    const wrong = () => server.client({ apiKey: "wrong-key" }).completions.create({ model: it.model, prompt: "And" });
    const error = await refused(server, OpenAI.AuthenticationError, COMPLETIONS, wrong);
    assert.deepEqual([error.type, error.code], ["authentication_error", "invalid_api_key"]);
  } finally {
    await server.stop();
  }
});

test("a full queue is worth a retry, which the client makes when told", async () => {
  const server = await Server.start("--lanes", "1", "--max-queue", "1", "--ctx-size", "65536");
  try {
    const request = { model: it.model, prompt: "And", max_tokens: 60_000, ignore_eos: true };
    const running = await server.client().completions.create({ ...request, stream: true });
    const queued = server.client().completions.create({ ...request, max_tokens: 1 });
    await server.until(async () => (await server.metric("skippy_requests_queued")) === 1, "full");
    const without = server.client({ maxRetries: 0 }).completions.create({ ...request, max_tokens: 1 });
    await assert.rejects(without, (error) => error instanceof OpenAI.RateLimitError && error.code === "queue_full");
    const rejected = () => server.metric("skippy_request_errors_total", { class: "queue_full" });
    const patient = server.client().completions.create({ ...request, max_tokens: 1 });
    await server.until(async () => (await rejected()) === 2, "full for the second request too");
    running.controller.abort();
    assert.equal((await queued).usage.completion_tokens, 1);
    assert.equal((await patient).usage.completion_tokens, 1);
  } finally {
    await server.stop();
  }
});

test("llama.cpp#16104: an error in the midst of a stream is raised", async () => {
  const server = await Server.start("--shutdown-timeout", "0", "--ctx-size", "65536");
  const request = { model: it.model, prompt: "And", max_tokens: 60_000, ignore_eos: true, stream: true };
  const stream = await server.client().completions.create(request);
  let seen = 0;
  await assert.rejects(
    async () => {
      for await (const chunk of stream) {
        if (seen++ === 0) server.process.kill("SIGTERM");
        assert.ok(chunk.choices);
      }
    },
    (error) => error instanceof OpenAI.APIError && error.code === "shutting_down",
  );
  assert.ok(seen > 0);
  assert.equal(await server.ended, 0, server.log);
});

test("the server answers after all that", async () => {
  assert.ok((await all(complete({ stream: true }))).length > 1);
  await it.server.untilIdle();
});
