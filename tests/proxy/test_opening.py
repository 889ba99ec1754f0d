"""What is held of a stream until its first event is there."""

import asyncio

import pytest

from kvguard.clock import ManualClock
from kvguard.errors import UpstreamBroken, UpstreamError
from kvguard.proxy.opening import MAX_HELD_BYTES, Opening
from tests.kit.scripted import Answer

pytestmark = pytest.mark.anyio


async def never() -> None:
    await asyncio.Event().wait()


async def rest_of(opening: Opening) -> list[bytes]:
    return [block async for block in opening.blocks()]


@pytest.mark.parametrize(
    ("blocks", "event", "rest"),
    [
        ([b"data: 1\n\n", b"data: 2\n\n"], b"data: 1", [b"data: 1\n\n", b"data: 2\n\n"]),
        (
            [b":\n\n", b"da", b"ta: 1\n\ndata: 2\n\nda", b"ta: 3"],
            b"data: 1",
            [b":\n\ndata: 1\n\ndata: 2\n\nda", b"ta: 3"],
        ),
        ([b"data: 1\n\n"], b"data: 1", [b"data: 1\n\n"]),
    ],
)
async def test_the_first_event_and_everything(blocks: list[bytes], event: bytes, rest: list[bytes]) -> None:
    """Whatever was looked at passes as well, in one block."""
    opening = Opening(Answer(*blocks, None).blocks())
    assert await opening.first_event(never()) == event
    assert await rest_of(opening) == rest
    opening.close()


async def test_an_event_that_is_too_long_to_be_held() -> None:
    """It passes without having been looked at."""
    begun = b"data: " + b"x" * MAX_HELD_BYTES
    opening = Opening(Answer(begun, b"\n\n", None).blocks())
    assert await opening.first_event(never()) is None
    assert await rest_of(opening) == [begun, b"\n\n"]


@pytest.mark.parametrize("before", [[], [b":\n\n"], [b"data: 1"]])
async def test_an_answer_without_an_event(before: list[bytes]) -> None:
    """It is as good as none."""
    with pytest.raises(UpstreamBroken):
        await Opening(Answer(*before, None).blocks()).first_event(never())
    with pytest.raises(UpstreamError, match="gone"):
        await Opening(Answer(*before, UpstreamBroken("gone")).blocks()).first_event(never())


@pytest.mark.parametrize(
    ("held", "comes"), [([], [b"data: 1\n\n"]), ([b":\n\n"], [b"data: 1\n\n", b"x"]), ([b":\n\n"], [])]
)
async def test_patience_that_ends(held: list[bytes], comes: list[bytes]) -> None:
    """What was held passes then, and the block that was waited for is not lost."""
    answer, patience = Answer(*held), asyncio.Event()
    opening = Opening(answer.blocks())
    waiting = asyncio.ensure_future(opening.first_event(ended(patience)))
    await ManualClock().settle()
    assert not waiting.done()
    patience.set()
    assert await waiting is None
    for block in (*comes, None):
        answer.put(block)
    assert await rest_of(opening) == [*held, *comes]
    opening.close()


async def ended(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_block_nobody_waits_for_any_more() -> None:
    """Nobody hears of it, be it an error."""
    answer, patience = Answer(), asyncio.Event()
    opening = Opening(answer.blocks())
    patience.set()
    assert await opening.first_event(ended(patience)) is None
    opening.close()
    answer.put(UpstreamBroken("gone"))
    await ManualClock().settle()
