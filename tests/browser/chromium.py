"""A headless Chromium, spoken to over its DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Page:
    """One tab. `complaints` are all exceptions, console errors and violations of the page's policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._hear(said["method"], said["params"])

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.exceptionThrown":
                self.complaints.append(params["exceptionDetails"]["text"])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.complaints.append(str(params["args"]))

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method and give back its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(30):
            said = await answer
        if "error" in said:
            raise RuntimeError(f"{method}: {said['error']}")
        return said["result"]

    async def begin(self) -> None:
        """Hear of everything that goes wrong."""
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")

    async def open(self, url: str) -> None:
        """Load a page."""
        self._loaded.clear()
        await self.send("Page.navigate", url=url)
        async with asyncio.timeout(30):
            await self._loaded.wait()

    async def look(self, *, width: int = 1280, height: int = 900, scheme: str = "dark", phone: bool = False) -> None:
        """See it at this size and in this colour scheme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def ask(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    async def until(self, script: str, *, seconds: float = 30) -> None:
        """Wait for an expression to become true."""
        async with asyncio.timeout(seconds):
            while not await self.ask(script):
                await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13}[key]
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is to be seen, or the whole page, as PNG."""
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def close(self) -> None:
        """Hear no more."""
        self._reading.cancel()
        await asyncio.wait({self._reading})


@contextlib.asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Page]:
    """A browser with one empty page; its profile is in `folder`."""
    binary = shutil.which("chromium")
    if binary is None:
        raise RuntimeError("there is no chromium: make test-browser installs it")
    process = await asyncio.create_subprocess_exec(
        binary, *FLAGS, f"--user-data-dir={folder}", "about:blank", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        port_file = folder / "DevToolsActivePort"
        async with asyncio.timeout(60):
            while not port_file.exists() or not port_file.read_text().count("\n"):
                await asyncio.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            socket = await session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
            page = Page(socket)
            await page.begin()
            yield page
            await page.close()
            await socket.close()
    finally:
        process.terminate()
        await process.wait()
