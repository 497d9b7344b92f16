// Schedules per second of pg-boss: each second one is throttled by a singletonKey that was used just before.
//   node pg-boss.mjs URL SECONDS CALLERS MODULES
import { createRequire } from "node:module";
import { measure } from "./measure.mjs";

const [url, seconds, callers, modules] = process.argv.slice(2);
const PgBoss = createRequire(`${modules}/`)("pg-boss");

const boss = new PgBoss({ connectionString: url, max: 32, schema: "bench_pgboss", supervise: false, schedule: false });
boss.on("error", (error) => console.error(error));
await boss.start();
await boss.createQueue("sync");
await measure(Number(seconds), Number(callers), (caller, turn) => {
  const entityId = `${caller}-${Math.floor(turn / 2)}`;
  const options = { singletonKey: entityId, singletonSeconds: 60 };
  return boss.send("sync", { entityId, entityType: "lead", turn }, options);
});
await boss.stop({ graceful: false });
process.exit(0);
