"""`stentor bench serve`: load on a server, over HTTP or WebSocket."""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from stentor.bench.campaign import BenchJob, run
from stentor.bench.load.client import Client, ServerTarget
from stentor.bench.load.generator import garbage_collection_off
from stentor.bench.load.prompts import select
from stentor.bench.load.record import Spool
from stentor.bench.metrics.decode import decode
from stentor.bench.report import facts

# failures of a server that is not ready yet
MAY_PASS = ("connect", "disconnected", "timeout", "http_429")


def serve(target: ServerTarget, make_job: Callable[[str], BenchJob], ready_timeout_s: float) -> int:
    """Run a job against a server. `make_job` gets the model's name, which may have to be read from
    the server.

    Raises:
        ValueError: the server does not answer. It names the target or flag.
    """
    return asyncio.run(_serve(target, make_job, ready_timeout_s))


async def _serve(
    target: ServerTarget, make_job: Callable[[str], BenchJob], ready_timeout_s: float
) -> int:
    spool = Spool()
    try:
        model = await _model(target)
        target = replace(target, defaults=replace(target.defaults, model=model))
        job = make_job(model or "default")
        async with Client(target, spool) as client:
            await _wait_until_ready(client, job, spool, ready_timeout_s)
            facts_before = {
                "client": facts.client_facts(),
                "server": await facts.server_facts(client.session, target.base_url),
            }
            with facts.gpu_watch(facts.is_local(target.base_url)) as gpus, garbage_collection_off():
                return await run(job, client, spool, lambda: facts_before | gpus())
    finally:
        spool.close()


async def _model(target: ServerTarget) -> str | None:
    """`--model`, else the first model that the server lists, else none (the server's default)."""
    if target.defaults.model:
        return target.defaults.model
    url = target.base_url.rstrip("/") + "/v1/models"
    try:
        async with (
            aiohttp.ClientSession(headers=dict(target.headers or {})) as http,
            http.get(
                url, timeout=aiohttp.ClientTimeout(total=10), ssl=not target.insecure
            ) as response,
        ):
            listed = await response.json()
        return str(listed["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return None


async def _wait_until_ready(client: Client, job: BenchJob, spool: Spool, timeout_s: float) -> None:
    """Send one request until it is answered: no run measures the start of a server, and a wrong
    flag shows early."""
    if timeout_s <= 0:
        return
    probe = select(job.texts, 1, 0)
    client.prepare(probe)
    deadline = time.monotonic() + timeout_s
    reported = False
    while True:
        reply = await client.send(probe[0])
        failure = decode(
            reply, spool.get(reply.body), job.settings.framing, job.settings.assumed_rate
        ).failure
        if failure is None:
            return
        refused = failure.kind.startswith("http_")
        if refused:
            why = f"{reply.status} {failure.message}"
        else:
            why = failure.message
        if failure.kind not in MAY_PASS and not failure.kind.startswith("http_5"):
            if refused:
                what = "refuses the request"
            else:
                what = "answers the request without valid audio"
            raise ValueError(f"{client.target.url} {what}: {why}")
        if not reported:
            print(
                f"waiting up to {timeout_s:g} s for {client.target.url}: {why}",
                file=sys.stderr,
                flush=True,
            )
            reported = True
        if time.monotonic() > deadline:
            raise ValueError(f"{client.target.url} is not ready after {timeout_s:g} s: {why}")
        await asyncio.sleep(1)
