"""Writes docs/live.png: the live page in front of the embedded engine under overload. `make screenshots`."""

import asyncio
import tempfile
from pathlib import Path

from tests.browser.chromium import chromium
from tests.browser.test_live_page import LIVE, load
from tests.kit.process import process

HERE = Path(__file__).parent
SECONDS = 45


async def shoot() -> None:
    """Let the load go on for a while, and look."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with process("sim://") as guard, chromium(Path(folder)) as page, load(guard, 24):
            await page.look(width=1180, height=1060)
            await page.open(f"http://127.0.0.1:{guard.admin_port}/")
            await page.until(LIVE)
            await asyncio.sleep(SECONDS)  # noqa: TID251  for the lines to have something to show
            await page.until("document.getElementById('title').textContent.startsWith('Overload')")
            await page.screenshot(HERE / "live.png")


if __name__ == "__main__":
    asyncio.run(shoot())
