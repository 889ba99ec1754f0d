"""A real uvicorn on port 0 around a simulator, and the clients tests talk to it with."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from kvguard.clock import SystemClock
from kvguard.simulator.app import create_app
from kvguard.simulator.config import SimConfig

FAST = {"step_base_seconds": 0.0, "step_seconds_per_sequence": 0.0, "prefill_seconds_per_token": 0.0}


class AnnouncedServer(uvicorn.Server):
    """Says when it listens and is told when to stop, so that nobody has to poll."""

    def __init__(self, config):
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self):
        await self.on_tick(0)
        await self.stop.wait()

    @property
    def port(self):
        return self.servers[0].sockets[0].getsockname()[1]


@asynccontextmanager
async def serving(config=None, clock=None, create=create_app):
    """An httpx client of a running simulator; `client.base_url.port` is where it listens."""
    app = create(config or SimConfig(**FAST), clock or SystemClock())
    server = AnnouncedServer(uvicorn.Config(app, port=0, lifespan="on", log_level="error", ws="none"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        await server.ready.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=5) as client:
            try:
                yield client
            finally:
                server.stop.set()


async def opened(client, body, path="/v1/completions"):
    """A connection of its own that has sent one request and reads nothing yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    await writer.drain()
    return reader, writer


def events(text):
    """The payloads of an SSE text; the end mark stays a string."""
    payloads = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


async def samples(client):
    """The scrape as {(name, labels without engine and model_name): value}."""
    scrape = await client.get("/metrics")
    return parsed(scrape.text)


def parsed(text):
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k not in ("engine", "model_name"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
