// Schedules per second of graphile-worker: each second one replaces the job of a jobKey that was used just before.
//   node graphile-worker.mjs URL SECONDS CALLERS MODULES
import { createRequire } from "node:module";
import { measure } from "./measure.mjs";

const [url, seconds, callers, modules] = process.argv.slice(2);
const { makeWorkerUtils } = createRequire(`${modules}/`)("graphile-worker");
const { Pool } = createRequire(`${modules}/`)("pg");

const pgPool = new Pool({ connectionString: url, max: 32 });
const utils = await makeWorkerUtils({ pgPool, schema: "bench_graphile" });
await utils.migrate();
await measure(Number(seconds), Number(callers), (caller, turn) => {
  const entityId = `${caller}-${Math.floor(turn / 2)}`;
  const runAt = new Date(Date.now() + 60_000);
  return utils.addJob("sync", { entityId, entityType: "lead", turn }, { jobKey: entityId, jobKeyMode: "replace", runAt });
});
await utils.release();
process.exit(0);
