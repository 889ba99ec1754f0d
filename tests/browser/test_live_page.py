"""The live page in a real browser, fed by a real kvguard process in front of the embedded engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import httpx
import pytest

from kvguard.proxy.live import TICK_SECONDS
from kvguard.telemetry.live.build import STRIPS
from tests.browser.chromium import Page, chromium
from tests.kit.process import Process, process

pytestmark = [pytest.mark.browser, pytest.mark.anyio]

# A page that is up to date says so.
LIVE = "document.getElementById('feed').textContent === 'live'"
BODY = {"model": "sim-tiny", "prompt": "Once upon a time there was a cache. " * 20, "max_tokens": 400}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def looking(folder: Path, guard: Process) -> AsyncIterator[Page]:
    """The page, open and fed; whatever the browser complained about fails the test."""
    async with chromium(folder) as page:
        await page.look()
        await page.open(f"http://127.0.0.1:{guard.admin_port}/")
        await page.until(LIVE)
        yield page
        assert page.complaints == []


@contextlib.asynccontextmanager
async def load(guard: Process, clients: int, body: dict | None = None) -> AsyncIterator[None]:
    """So many clients that ask again and again."""
    url = f"http://127.0.0.1:{guard.port}/v1/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def insist() -> None:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.post(url, json={**BODY, "ignore_eos": True, **(body or {})}) as answer:
                        await answer.read()
                await asyncio.sleep(0.2)

        tasks = [asyncio.create_task(insist()) for _ in range(clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_it_shows_an_overload_within_a_second_of_each_change(tmp_path: Path) -> None:
    """The title, the server's tier, refusals in words, the settings; and it is calm again when the load has gone."""
    async with process("sim://") as guard, looking(tmp_path, guard) as page:
        assert await page.ask("document.getElementById('title').textContent") == "Calm: requests pass unchanged"
        async with load(guard, 32):
            await page.until("document.getElementById('title').textContent.startsWith('Overload')")
            await page.until("document.querySelector('.tier').textContent === 'REJECT'")
            await page.until(
                "document.getElementById('happenings').textContent.includes('refused, because the cache is full')"
            )
            assert await page.ask("document.getElementById('settings').textContent.includes('tiers.reject_at0.95')")
            assert "Once upon" not in await page.ask("document.documentElement.outerHTML")
            async with httpx.AsyncClient(trust_env=False) as client:
                before = (await client.get(f"http://127.0.0.1:{guard.admin_port}/live/snapshot")).json()["at"]
            await page.until(f"latest.at > {before}", seconds=1.0)
        await page.until("document.getElementById('title').textContent.startsWith('Calm')")


async def test_pausing_keeps_what_is_seen(tmp_path: Path) -> None:
    """By keyboard: the button has a visible focus, and what it does is announced; history goes on meanwhile."""
    async with process("sim://") as guard, looking(tmp_path, guard) as page:
        await page.press("Tab")
        assert await page.ask("document.activeElement.id") == "pause"
        assert await page.ask("getComputedStyle(document.activeElement).outlineWidth") == "3px"
        await page.press("Enter")
        assert await page.ask("document.activeElement.getAttribute('aria-pressed')") == "true"
        at, kept = await page.ask("latest.at"), await page.ask("moments.length")
        await page.until(f"moments.length > {kept}")
        assert await page.ask("latest.at") == at
        await page.press("Enter")
        await page.until(f"latest.at > {at}")


async def test_everything_that_scrolls_or_opens_is_reached_by_keyboard(tmp_path: Path) -> None:
    """Pause, what happened, the settings, and the links at the end, in the order in which they stand."""
    async with process("sim://") as guard, looking(tmp_path, guard) as page:
        reached = []
        for _ in range(7):
            await page.press("Tab")
            reached.append(await page.ask("document.activeElement.textContent.trim().slice(0, 8)"))
        assert reached[0] == "Pause"
        assert reached[2:] == ["Settings", "metrics", "this pag", "backends", "API"]


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_text_stands_out(tmp_path: Path, scheme: str) -> None:
    """At least 4.5 to 1 against what is behind it (WCAG 2.2, 1.4.3), in either colour scheme."""
    async with process("sim://") as guard, looking(tmp_path, guard) as page:
        await page.look(scheme=scheme)
        async with load(guard, 24):
            await page.until("document.getElementById('happenings').children.length > 0")
            low = await page.ask(CONTRAST)
        assert low == []


async def test_it_fits_a_phone(tmp_path: Path) -> None:
    """Nothing sticks out sideways at 360 pixels, and the first card begins on the first screens."""
    async with process("sim://") as guard, looking(tmp_path, guard) as page:
        await page.look(width=360, height=740, phone=True)
        await page.until("document.documentElement.scrollWidth === 360")
        assert await page.ask("document.querySelector('.server').getBoundingClientRect().top") < 2 * 740


async def test_a_thousand_requests_in_flight_stay_smooth(tmp_path: Path) -> None:
    """As many strips as are ever sent are drawn, with five minutes of history, long before the next snapshot comes."""
    async with process("sim://") as guard, looking(tmp_path, guard) as page:
        await page.ask(CROWD)
        assert await page.ask("latest.servers[0].memory.strips.length") == STRIPS
        worst = await page.ask(DRAWING)
        assert worst < 1000 * TICK_SECONDS / 2, f"drawing took {worst:.0f} ms"


# The snapshot as it is with so many requests in flight, and history to the brim; from now on no other is taken in.
CROWD = f"""
feed.close();
latest.servers[0].memory.capacity_blocks = 40000;
latest.servers[0].memory.strips = Array.from({{length: {STRIPS}}}, (_, number) => [8, number % 16, 12]);
while (moments.length < KEEP) moments.push(moments[0]);
"""

# Milliseconds of the longest of twenty updates of the whole page, from the snapshot to the last stroke.
DRAWING = """
(() => {
  let worst = 0;
  for (let turn = 0; turn < 20; turn++) {
    const began = performance.now();
    show(latest);
    for (const server of latest.servers) {
      const parts = cards.get(server.name);
      drawGauge(parts.gauge, server, latest.thresholds);
      drawLines(parts.lines, server.name, latest.thresholds);
      drawMap(parts.map, server.memory);
    }
    drawRequests();
    worst = Math.max(worst, performance.now() - began);
  }
  return worst;
})()
"""

# Every text whose colour does not stand out enough against the nearest background behind it.
CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
  };
  const low = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.tagName === "SCRIPT") continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.push(node.tagName + ": " + node.textContent.slice(0, 30) + " " + ratio.toFixed(2));
  }
  return low;
})()
"""
