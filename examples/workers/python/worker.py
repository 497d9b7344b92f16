#!/usr/bin/env python3
"""A worker that asks Oncegate before it sends. `--no-guard` leaves that out."""

import http.client
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

SENDS = os.environ["ONCEGATE_URL"] + "/api/sends"
PROVIDER = os.environ["DRILL_PROVIDER_URL"]
GUARDED = "--no-guard" not in sys.argv[1:]
# Seconds. Less than the lease: a send that hangs is given up while it is still ours.
TIMEOUT = 10

stdout = threading.Lock()


class Unsent(Exception):
    """The provider surely did not take it."""


def post(url, body, headers={}):
    """Posts JSON, and returns the status, the headers and the body of the answer."""
    to = urlsplit(url)
    connect = http.client.HTTPSConnection if to.scheme == "https" else http.client.HTTPConnection
    with closing(connect(to.netloc, timeout=TIMEOUT)) as connection:
        # A step of its own: what fails here has sent nothing, what fails later may have arrived.
        try:
            connection.connect()
        except OSError as error:
            raise Unsent(f"no connection to {to.netloc}: {error}") from error
        connection.request("POST", to.path or "/", json.dumps(body), {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def send(job, headers={}):
    """Calls the provider, and returns its id of the message."""
    status, _, body = post(PROVIDER, named(job), headers)
    # It may have taken what it calls a time-out or a conflict.
    if 400 <= status < 500 and status not in (408, 409):
        raise Unsent(f"the provider answered {status}")
    if status >= 300:
        raise RuntimeError(f"the provider answered {status}")
    return json.loads(body)["id"]


def named(job):
    return {"campaignId": job["campaignId"], "recipientId": job["recipientId"], "jobId": job["id"]}


def work(job):
    """Does a job, and returns what to tell the queue."""
    if not GUARDED:
        send(job)
        return {"ack": job["id"]}

    status, headers, body = post(SENDS, named(job))
    if status == 200:  # skip: it was sent already
        return {"ack": job["id"]}
    if status in (409, 503):  # busy, or Oncegate cannot say: never send unguarded
        return {"retry": job["id"], "after": int(headers.get("Retry-After", 1))}
    if status != 201:
        raise RuntimeError(f"Oncegate answered {status}: {body.decode()}")

    ours = json.loads(body)
    send_url = f"{SENDS}/{ours['id']}"
    try:
        message_id = send(job, {"Idempotency-Key": ours["providerKey"]})
    except Exception as error:
        reached = "no" if isinstance(error, Unsent) else "maybe"
        post(f"{send_url}/failed", {"token": ours["token"], "error": str(error), "reached": reached})
        raise
    status, _, _ = post(f"{send_url}/sent", {"token": ours["token"], "espMessageId": message_id})
    if status >= 300:  # it is not written down, so the job is not done: the next try asks again
        raise RuntimeError(f"Oncegate answered {status} to sent")
    return {"ack": job["id"]}


def handle(line):
    job = json.loads(line)
    try:
        answer = work(job)
    except Exception as error:
        print(f"job {job['id']}: {error}", file=sys.stderr)
        answer = {"retry": job["id"], "after": 1}
    with stdout:
        print(json.dumps(answer), flush=True)


with ThreadPoolExecutor(max_workers=4) as pool:
    for line in sys.stdin:
        pool.submit(handle, line)
