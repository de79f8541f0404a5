// A real `skippy-stage serve` process on the bundled model, the official client, and what the tests ask beside it.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";

const BIN = process.env.SKIPPY_BIN;
const BUNDLED = fileURLToPath(new URL("../../assets/skippy-kjv-6m", import.meta.url));

/** Upper bound of every wait. Generous: the machine may be busy with other builds. */
export const PATIENCE_MS = 60_000;

/** One server process on a free loopback port. */
export class Server {
  log = "";

  /** Resolves once the server is ready. */
  static async start(...args) {
    const server = new Server();
    const kept = Object.entries(process.env).filter(([name]) => !/^(SKIPPY_|RUST_LOG)/.test(name));
    server.process = spawn(BIN, ["serve", BUNDLED, "--bind", "127.0.0.1:0", "--threads", "1", ...args], {
      env: { ...Object.fromEntries(kept), NO_COLOR: "1" },
      stdio: ["ignore", "ignore", "pipe"],
    });
    server.ended = new Promise((resolve) => server.process.on("exit", resolve));
    const listening = new Promise((resolve) => {
      createInterface({ input: server.process.stderr }).on("line", (line) => {
        server.log += `${line}\n`;
        const found = /listening on (http:\/\/127\.0\.0\.1:\d+)/.exec(line);
        if (found) resolve(found[1]);
      });
    });
    server.url = await Promise.race([listening, server.ended]);
    assert.ok(typeof server.url === "string", `the server named no address:\n${server.log}`);
    await server.until(async () => (await fetch(`${server.url}/readyz`)).ok, "ready");
    return server;
  }

  /** Retries stay at the client's default of two, as users have them: what cannot succeed must not cause any. */
  client(options = {}) {
    return new OpenAI({ baseURL: `${this.url}/v1`, apiKey: "unused", timeout: PATIENCE_MS, ...options });
  }

  /** Sum over the series of `name` that carry all `labels`. The name must be known; a status that nobody had is 0. */
  async metric(name, labels = {}) {
    const page = await (await fetch(`${this.url}/metrics`)).text();
    const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
    assert.ok(page.includes(`# TYPE ${name} `), `/metrics does not know ${name}`);
    const values = page.split("\n").flatMap((line) => {
      const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (!found || found[1] !== name) return [];
      const carried = found[2] ? found[2].match(/\w+="(?:[^"\\]|\\.)*"/g) : [];
      return wanted.every((label) => carried.includes(label)) ? [Number(found[3])] : [];
    });
    return values.reduce((sum, value) => sum + value, 0);
  }

  /** Asks again until `condition` holds. Every ask is a request to the server, so this is no idle spin. */
  async until(condition, what) {
    const deadline = Date.now() + PATIENCE_MS;
    while (!(await condition())) {
      assert.equal(this.process.exitCode, null, `the server died before it was ${what}:\n${this.log}`);
      assert.ok(Date.now() < deadline, `the server was not ${what} in time:\n${this.log}`);
    }
  }

  /** Until nothing runs, waits or holds anything. */
  async untilIdle() {
    for (const gauge of ["lanes_busy", "requests_in_flight", "requests_queued"]) {
      await this.until(async () => (await this.metric(`skippy_${gauge}`)) === 0, `idle by ${gauge}`);
    }
  }

  /** Ends the server, which must have been alive and well. */
  async stop() {
    const alive = this.process.exitCode === null;
    this.process.kill("SIGKILL");
    await this.ended;
    assert.ok(alive && !this.log.includes("panicked"), this.log);
  }
}

/** One server for the tests of a file: an object that has `server`, `client` and `model` once they run. */
export function serving(...args) {
  const shared = {};
  before(async () => {
    shared.server = await Server.start(...args);
    shared.client = shared.server.client();
    shared.model = (await shared.client.models.list()).data[0].id;
  });
  after(() => shared.server?.stop());
  return shared;
}

/** A table that the tests in Python walk too. */
export function cases(name) {
  return JSON.parse(readFileSync(new URL(`../cases/${name}.json`, import.meta.url)));
}

/** The error that `call` raises: exactly a `kind`, and the only request that it cost, since a retry would fail too. */
export async function refused(server, kind, route, call) {
  const requests = () => server.metric("skippy_http_requests_total", { method: "POST", route });
  const before = await requests();
  let caught;
  await assert.rejects(call, (error) => {
    caught = error;
    return true;
  });
  assert.equal(caught.constructor, kind, String(caught));
  assert.equal((await requests()) - before, 1, "the client asked again");
  return caught;
}

/** All items of a stream. */
export async function all(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}
