"""`stentor bench serve`: load on a server, over HTTP or WebSocket."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from stentor.bench.campaign import Job, Target, run
from stentor.bench.load.client import Client
from stentor.bench.load.client import Target as Address
from stentor.bench.load.load import no_collector_pauses
from stentor.bench.load.prompts import pick
from stentor.bench.load.record import Spool
from stentor.bench.metrics.decode import refusal_text
from stentor.bench.report import facts


def serve(address: Address, make_job: Callable[[str], Job], ready_timeout_s: float) -> int:
    """Run a job against a server. `make_job` gets the model's name, which the server may have to tell.

    Raises:
        ValueError: the server cannot be asked; names the address or flag.
    """
    return asyncio.run(_serve(address, make_job, ready_timeout_s))


async def _serve(address: Address, make_job: Callable[[str], Job], ready_timeout_s: float) -> int:
    spool = Spool()
    try:
        model = await _model(address)
        address = replace(address, ask=replace(address.ask, model=model))
        job = make_job(model or "default")
        async with Client(address, spool) as client:
            await _wait_until_ready(client, job, spool, ready_timeout_s)
            told = {
                "client": facts.client_facts(),
                "server": await facts.server_facts(client.session, address.base_url),
            }
            with facts.gpu_watch(facts.is_local(address.base_url)) as gpus, no_collector_pauses():
                return await run(job, Target(client, client.prepare, spool, lambda: told | gpus()))
    finally:
        spool.close()


async def _model(address: Address) -> str | None:
    """`--model`, else the first model that the server lists, else none (the server's default)."""
    if address.ask.model:
        return address.ask.model
    url = address.base_url.rstrip("/") + "/v1/models"
    try:
        async with (
            aiohttp.ClientSession(headers=dict(address.headers or {})) as http,
            http.get(url, timeout=aiohttp.ClientTimeout(total=10), ssl=not address.insecure) as response,
        ):
            listed = await response.json()
        return str(listed["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return None


async def _wait_until_ready(client: Client, job: Job, spool: Spool, timeout_s: float) -> None:
    """Ask for one answer until it comes: a run measures no server's start, and a wrong flag shows before the load."""
    if timeout_s <= 0:
        return
    probe = pick(job.texts, 1, 0)
    client.prepare(probe)
    deadline = time.monotonic() + timeout_s
    while True:
        reply = await client.send(probe[0])
        refused = reply.failure is not None and reply.failure.kind in ("connect", "disconnected")
        status = reply.status or 200
        if not refused and status < 300:
            return
        why = reply.failure.message if reply.failure else f"{status} {refusal_text(spool.get(reply.body))}"
        if not refused and status < 500 and status != 429:
            raise ValueError(f"{client.target.url} refuses the request: {why}")
        if time.monotonic() > deadline:
            raise ValueError(f"{client.target.url} is not ready after {timeout_s:g} s: {why}")
        await asyncio.sleep(1)
