"""A backend under test control, on raw sockets: it says what the test sets, records what it is asked and who left."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

HEAD_JSON = "content-type: application/json\r\n"
HEAD_SSE = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"


def exposition(
    *gauges: float,
    blocks: int | None = 100,
    block_size: int = 16,
    name: str = "kv_cache_usage_perc",
    waiting: int = 0,
    prefix_caching: bool | None = None,
    **series: float,
) -> str:
    """A vLLM page with one engine per gauge; `blocks` are usable in each, None leaves the capacity out,
    `prefix_caching` is said unless it is None, and `series` are further ones of every engine.

    As vLLM does, every engine's series states the blocks of all engines together, null blocks included.
    """
    lines = []
    engines = max(len(gauges), 1)
    for engine, gauge in enumerate(gauges):
        labels = f'engine="{engine}",model_name="tiny"'
        lines.append(f"vllm:{name}{{{labels}}} {gauge}")
        lines.append(f"vllm:num_requests_waiting{{{labels}}} {waiting}")
        lines += [f"vllm:{other}{{{labels}}} {value}" for other, value in series.items()]
    if blocks is not None:
        total = engines * (blocks + 1)
        caching = "" if prefix_caching is None else f',enable_prefix_caching="{prefix_caching}"'
        lines += [
            f'vllm:cache_config_info{{block_size="{block_size}",engine="{engine}",num_gpu_blocks="{total}"{caching}}} 1'
            for engine in range(engines)
        ]
    return "\n".join([*lines, ""])


def working_page(gauge: float = 0.5, *, running: int = 0, tokens: int = 0, waiting: int = 0, awake: int = 1) -> str:
    """The page of an engine that says what it takes to tell its condition; it has generated so many tokens."""
    page = exposition(
        gauge, waiting=waiting, num_requests_running=running, prompt_tokens_total=0, generation_tokens_total=tokens
    )
    return f'{page}vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}\n'


@dataclass(frozen=True)
class Hit:
    """One request as it reached the backend."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)


class Call:
    """A request being answered."""

    def __init__(self, hit: Hit, writer: asyncio.StreamWriter) -> None:
        self.hit = hit
        self.writer = writer
        self.closing = False

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: int, body: bytes | dict | list, head: str = HEAD_JSON) -> None:
        """A whole answer with a length."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.raw(f"HTTP/1.1 {status} X\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def start_stream(self) -> None:
        await self.raw(f"HTTP/1.1 200 OK\r\n{HEAD_SSE}\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, value: dict | str) -> None:
        data = value if isinstance(value, str) else json.dumps(value)
        await self.chunk(f"data: {data}\n\n".encode())

    async def token(self, index: int = 0) -> None:
        await self.event({"choices": [{"index": index, "text": " x", "finish_reason": None}]})

    async def end_stream(self) -> None:
        await self.event("[DONE]")
        await self.raw(b"0\r\n\r\n")

    def reset(self) -> None:
        """Drop the connection hard."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Call], Awaitable[None]]


def completion(prompt_tokens: int = 1, completion_tokens: int = 1) -> dict:
    """A valid answer of either generating route."""
    return {
        "id": "x",
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": " x", "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


async def answer_at_once(call: Call) -> None:
    """A stream of three tokens or a whole answer, as asked."""
    if not call.hit.json.get("stream"):
        await call.reply(200, completion())
        return
    await call.start_stream()
    for _ in range(3):
        await call.token()
    await call.event({"choices": [], "usage": completion(1, 3)["usage"]})
    await call.end_stream()


@dataclass
class Stub:
    """The backend. `answer` serves the generating routes; `tokens` is what /tokenize says; `adapters` have a parent.
    With a `key` it tells its models to nobody else.

    With an `info` it is a TGI server; in those of its pages that are not set nothing has begun.
    """

    page: str | None = None
    info: dict | None = None
    answer: Behaviour = answer_at_once
    scrape: Behaviour | None = None
    tokens: int = 16
    model: str = "tiny"
    key: str = ""
    context_tokens: int | None = 2048
    adapters: dict[str, str] = field(default_factory=dict)
    hits: list[Hit] = field(default_factory=list)
    tokenized: list[Hit] = field(default_factory=list)
    accepted: int = 0
    open: int = 0
    left: int = 0
    scrapes: int = 0
    scraping: int = 0
    most_scraping: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    close_after_reply: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        if self.page is None:
            self.page = exposition(0.0) if self.info is None else ""

    @property
    def url(self) -> str:
        return f"{'' if self.info is None else 'tgi+'}http://{self.host}:{self.port}"

    @property
    def listed(self) -> dict:
        """What /v1/models says."""
        models = [{"id": self.model, "max_model_len": self.context_tokens}]
        return {"data": [*models, *({"id": name, "parent": base} for name, base in self.adapters.items())]}

    async def until(self, holds: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Wait until something the stub counts makes `holds` true."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(holds)

    async def _note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        await self._note()
        try:
            while (hit := await _read_hit(reader)) is not None:
                if not await self._serve_one(hit, reader, writer) or self.close_after_reply:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()
            await self._note()

    async def _serve_one(self, hit: Hit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is to end. A peer that leaves cancels the answer."""
        call = Call(hit, writer)
        working = asyncio.ensure_future(self._route(call))
        watching = asyncio.ensure_future(_peer_left(reader, writer))
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        gone = not working.done()
        for task in (working, watching):
            task.cancel()
        results = await asyncio.gather(working, watching, return_exceptions=True)
        if gone:
            self.left += 1
            await self._note()
            return False
        if isinstance(results[0], ConnectionError):
            self.left += 1
            await self._note()
            return False
        if isinstance(results[0], Exception):
            raise results[0]
        return not call.closing and not writer.transport.is_closing()

    async def _route(self, call: Call) -> None:
        path = call.hit.target.split("?")[0]
        if path == "/metrics":
            await self._serve_metrics(call)
        elif path == "/v1/models":
            known = not self.key or call.hit.headers.get("authorization") == f"Bearer {self.key}"
            await call.reply(200 if known else 401, self.listed if known else {"error": "Unauthorized"})
        elif path == "/info" and self.info is not None:
            await call.reply(200, self.info)
        elif path in ("/tokenize", "/chat_tokenize") and self.info is not None:
            self.tokenized.append(call.hit)
            tokens = [{"id": 1, "text": "x", "start": 0, "stop": 1}] * self.tokens
            await call.reply(200, {"tokenize_response": tokens} if path == "/chat_tokenize" else tokens)
        elif path == "/tokenize":
            self.tokenized.append(call.hit)
            await call.reply(200, {"count": self.tokens, "max_model_len": self.context_tokens, "tokens": []})
        else:
            self.hits.append(call.hit)
            await self._note()
            await self.answer(call)

    async def _serve_metrics(self, call: Call) -> None:
        self.scrapes += 1
        self.scraping += 1
        self.most_scraping = max(self.most_scraping, self.scraping)
        await self._note()
        try:
            if self.scrape is not None:
                await self.scrape(call)
            else:
                await call.reply(200, self.page.encode(), "content-type: text/plain\r\n")
        finally:
            self.scraping -= 1


async def _read_hit(reader: asyncio.StreamReader) -> Hit | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Hit(method, target, headers, body)


async def _peer_left(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Return when the peer has closed; a well-behaved one sends nothing while it waits."""
    with contextlib.suppress(ConnectionError):
        while not reader.at_eof() and not writer.transport.is_closing():
            if not await reader.read(1):
                return


@contextlib.asynccontextmanager
async def running_stub(stub: Stub | None = None) -> AsyncIterator[Stub]:
    """A stub listening on a loopback port of its own."""
    stub = stub or Stub()
    server = await asyncio.start_server(stub.serve, stub.host, stub.port, backlog=512)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        server.close()
        await server.wait_closed()


async def hold(call: Call) -> None:
    """Take the request and never answer."""
    await asyncio.Event().wait()


def hold_until(released: asyncio.Event) -> Behaviour:
    """Take the request and answer it once `released` is set."""

    async def answer(call: Call) -> None:
        await released.wait()
        await answer_at_once(call)

    return answer


async def broken(call: Call) -> None:
    """Answer 500 to whatever was asked."""
    await call.reply(500, {"error": {"message": "broken"}})


async def hold_stream(call: Call) -> None:
    """Send a stream's head and one token, then nothing."""
    await call.start_stream()
    await call.token()
    await asyncio.Event().wait()


class Driven:
    """A behaviour that leaves the answer to the test, which takes each call and says when it is done with it."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[Call] = asyncio.Queue()
        self._done: dict[Call, asyncio.Event] = {}

    async def __call__(self, call: Call) -> None:
        self._done[call] = asyncio.Event()
        self._calls.put_nowait(call)
        await self._done[call].wait()

    async def call(self) -> Call:
        """The next request that reached the backend."""
        async with asyncio.timeout(10.0):
            return await self._calls.get()

    def done(self, call: Call) -> None:
        """The answer is written; the connection takes the next request."""
        self._done.pop(call).set()


@contextlib.contextmanager
def refusing_stub() -> Iterator[Stub]:
    """A backend whose port is taken but refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield Stub(port=taken.getsockname()[1])
