// Starts aimock with the fixtures beside this file, on a free port of the loopback address.
//
// Prints `listening PORT` once it takes requests. With `--until-stdin-ends` it stops when its standard input
// ends, so that it does not outlive a test that was killed.

import { fileURLToPath } from "node:url";
import { LLMock } from "@copilotkit/aimock";

const mock = new LLMock({ host: "127.0.0.1", port: 0, logLevel: "silent" });
// Throws on a fixture that it does not understand, rather than answer 404 later.
mock.loadFixtureDir(fileURLToPath(new URL("fixtures", import.meta.url)));
await mock.start();
console.log(`listening ${mock.port}`);

const stop = async () => {
  await mock.stop();
  process.exit(0);
};
process.on("SIGINT", stop);
process.on("SIGTERM", stop);
if (process.argv.includes("--until-stdin-ends")) {
  process.stdin.on("end", stop).on("error", stop).resume();
}
