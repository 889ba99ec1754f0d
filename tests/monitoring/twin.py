"""A twin of an engine in a process of its own, so that Prometheus can read it: `twin.py sim://?seed=1 PORT`."""

import asyncio
import sys

from kvguard.clock import SystemClock
from kvguard.server import bind, serving
from kvguard.simulator.app import create_app
from kvguard.simulator.config import tgi_sim, vllm_sim
from kvguard.simulator.tgi_app import create_tgi_app


async def serve(url: str, port: int) -> None:
    """Until the process is ended."""
    clock = SystemClock()
    tgi = url.startswith("sim+tgi://")
    app = create_tgi_app(tgi_sim(url), clock) if tgi else create_app(vllm_sim(url), clock)
    async with serving(app, bind("127.0.0.1", port), lifespan=True):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
