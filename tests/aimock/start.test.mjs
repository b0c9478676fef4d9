// The conversations that the demo's end-to-end test relies on, asked over HTTP as the demo asks them.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

let server;
let base;

before(async () => {
  const script = fileURLToPath(new URL("start.mjs", import.meta.url));
  server = spawn(process.execPath, [script, "--until-stdin-ends"], { stdio: ["pipe", "pipe", "inherit"] });
  const [line] = await once(createInterface({ input: server.stdout }), "line");
  assert.match(line, /^listening \d+$/);
  base = `http://127.0.0.1:${line.split(" ")[1]}/v1`;
});

after(async () => {
  const ended = once(server, "exit");
  server.stdin.end();
  assert.deepEqual(await ended, [0, null]);
});

/** Asks for a streamed completion and folds its chunks. */
async function ask(messages) {
  const response = await fetch(`${base}/chat/completions`, {
    method: "POST",
    headers: { authorization: "Bearer any", "content-type": "application/json" },
    body: JSON.stringify({ model: "gpt-4o", stream: true, stream_options: { include_usage: true }, messages }),
  });
  assert.equal(response.status, 200);
  assert.match(response.headers.get("content-type"), /^text\/event-stream/);
  const events = (await response.text()).split("\n\n").filter(Boolean);
  assert.equal(events.pop(), "data: [DONE]");
  const reply = { text: "", calls: [], deltas: 0, finish: null, usage: null };
  for (const event of events) {
    const chunk = JSON.parse(event.slice("data: ".length));
    reply.usage = chunk.usage ?? reply.usage;
    const [choice] = chunk.choices;
    if (!choice) continue;
    reply.finish = choice.finish_reason ?? reply.finish;
    if (choice.delta.content) {
      reply.text += choice.delta.content;
      reply.deltas += 1;
    }
    for (const { index, id, function: piece } of choice.delta.tool_calls ?? []) {
      reply.calls[index] ??= { id, name: piece.name, arguments: "" };
      reply.calls[index].arguments += piece.arguments ?? "";
    }
  }
  return reply;
}

const user = (content) => ({ role: "user", content });

/** The rest of a conversation after the model made one call: the call, and its result. */
function ran({ id, name, arguments: text }) {
  const call = { id, type: "function", function: { name, arguments: text } };
  return [
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: id, content: "done" },
  ];
}

for (const [word, name, args] of [
  ["DEMO-1", "ls", { path: "." }],
  ["DEMO-2", "bash", { command: "echo hello from the demo" }],
]) {
  test(`${word} calls ${name}, and answers when it has the result`, async () => {
    const asked = [user(`Please do ${word} now.`)];
    const first = await ask(asked);
    assert.equal(first.finish, "tool_calls");
    assert.equal(first.text, "");
    assert.equal(first.calls.length, 1);
    assert.equal(first.calls[0].name, name);
    assert.ok(first.calls[0].id);
    assert.deepEqual(JSON.parse(first.calls[0].arguments), args);

    const talk = [...asked, ...ran(first.calls[0])];
    const second = await ask(talk);
    assert.equal(second.finish, "stop");
    assert.deepEqual(second.calls, []);
    assert.ok(second.deltas > 1);
    assert.ok(second.usage.total_tokens > 0);

    // The result of an earlier turn does not answer a later one.
    const again = await ask([...talk, { role: "assistant", content: second.text }, user(word)]);
    assert.equal(again.calls[0].name, name);
    assert.notEqual(again.calls[0].id, first.calls[0].id);
  });
}

test("DEMO-3 streams a long text in many small deltas", async () => {
  const start = performance.now();
  const reply = await ask([user("DEMO-3")]);
  assert.equal(reply.finish, "stop");
  assert.ok(reply.text.split(/\s+/).length > 300);
  assert.ok(reply.deltas > 150);
  // Long enough to do something in the middle of it.
  assert.ok(performance.now() - start > 1000);
});

test("a prompt without a fixture is an error at once", async () => {
  const body = JSON.stringify({ model: "gpt-4o", messages: [user("something else")] });
  const response = await fetch(`${base}/chat/completions`, { method: "POST", body });
  assert.equal(response.status, 404);
});
