// A BullMQ worker that asks Oncegate before it sends. `--no-guard` leaves that out.

import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { DelayedError, Queue, Worker } from 'bullmq';

const { ONCEGATE_URL, DRILL_PROVIDER_URL, REDIS_URL = 'redis://127.0.0.1:6379' } = process.env;
const guarded = !process.argv.includes('--no-guard');
// A queue for each drill: in one that was used before, the jobs of the same ids would be done already.
const queueName = process.env.DRILL_QUEUE ?? `drill-${new URL(ONCEGATE_URL).port}-${new URL(DRILL_PROVIDER_URL).port}`;
const connection = { url: REDIS_URL };

// The provider surely did not take it.
class Unsent extends Error {}

async function post(url, body, headers = {}) {
  const answer = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
    // Less than Oncegate's lease: a send that hangs is given up while it is still ours.
    signal: AbortSignal.timeout(10_000),
  });
  return { status: answer.status, headers: answer.headers, text: await answer.text() };
}

// Calls the provider, and returns its id of the message.
async function send(job, headers) {
  const answer = await post(DRILL_PROVIDER_URL, job, headers).catch((error) => {
    const noConnection = ['ECONNREFUSED', 'ENOTFOUND', 'UND_ERR_CONNECT_TIMEOUT'].includes(error.cause?.code);
    const why = error.cause?.message ?? error.message;
    throw noConnection ? new Unsent(why) : new Error(why);
  });
  // It may have taken what it calls a time-out or a conflict.
  const isRefusal = answer.status >= 400 && answer.status < 500 && ![408, 409].includes(answer.status);
  if (isRefusal) throw new Unsent(`the provider answered ${answer.status}`);
  if (answer.status >= 300) throw new Error(`the provider answered ${answer.status}`);
  return JSON.parse(answer.text).id;
}

async function work({ data: job }, delay) {
  if (!guarded) return send(job);

  const begun = await post(`${ONCEGATE_URL}/api/sends`, job);
  if (begun.status === 200) return; // skip: it was sent already
  // Busy, or Oncegate cannot say: never send unguarded.
  if ([409, 503].includes(begun.status)) return delay(begun.headers.get('retry-after') ?? 1);
  if (begun.status !== 201) throw new Error(`Oncegate answered ${begun.status}: ${begun.text}`);

  const { id, token, providerKey } = JSON.parse(begun.text);
  const sendUrl = `${ONCEGATE_URL}/api/sends/${id}`;
  let espMessageId;
  try {
    espMessageId = await send(job, { 'idempotency-key': providerKey });
  } catch (error) {
    const reached = error instanceof Unsent ? 'no' : 'maybe';
    await post(`${sendUrl}/failed`, { token, error: error.message, reached });
    throw error;
  }
  const { status } = await post(`${sendUrl}/sent`, { token, espMessageId });
  // It is not written down, so the job is not done: the next try asks again.
  if (status >= 300) throw new Error(`Oncegate answered ${status} to sent`);
}

const queue = new Queue(queueName, {
  connection,
  defaultJobOptions: {
    attempts: 100,
    backoff: { type: 'fixed', delay: 1000 },
    removeOnComplete: { age: 3600 },
    removeOnFail: true, // or the same id could not be added again
  },
});

const worker = new Worker(
  queueName,
  (job, lock) =>
    work(job, async (seconds) => {
      await job.moveToDelayed(Date.now() + seconds * 1000, lock);
      throw new DelayedError();
    }),
  {
    connection,
    concurrency: 4,
    // How soon the jobs of a process that was killed come back. Half a minute unless set.
    lockDuration: 1000,
    stalledInterval: 500,
    // How often. Once unless set: a job whose process is killed twice would count as failed.
    maxStalledCount: 1000,
  },
);
worker.on('completed', (job) => tell('ack', job.data.jobId));
worker.on('failed', (job, error) => {
  console.error(`job ${job?.data.jobId}: ${error.message}`);
  if (job?.finishedOn) tell('retry', job.data.jobId); // BullMQ has given it up
});
for (const each of [queue, worker]) each.on('error', (error) => console.error(error.message));

// From here on it is only how the drill's jobs get into BullMQ, and how the drill hears of them.

const open = new Set();

function tell(what, id) {
  // BullMQ also runs what a process before this one left: the drill hears of it when it has delivered it again.
  if (open.delete(id)) console.log(JSON.stringify({ [what]: id }));
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, campaignId, recipientId } = JSON.parse(line);
  open.add(id);
  // BullMQ takes neither numbers nor colons as ids. What is there already is not added again, done or not.
  const jobId = `job-${encodeURIComponent(id)}`;
  const job = await queue.add('send', { campaignId, recipientId, jobId: id }, { jobId });
  if (await job.isCompleted()) tell('ack', id); // in an earlier life
}
while (open.size > 0) await sleep(50);
await worker.close();
await queue.close();
