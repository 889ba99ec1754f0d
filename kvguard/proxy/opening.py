"""The beginning of a stream whose engine answers 200 whatever happens: nothing passes until its first event is there.

Comments are no events. An engine that only sends those for long has the request in its queue, and somebody on the way
may be about to cut a connection on which nothing comes, so then everything passes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

from kvguard.errors import UpstreamBroken
from kvguard.protocols.sse import first_event

MAX_HELD_BYTES: Final = 256 * 1024


async def or_end(blocks: AsyncIterator[bytes]) -> bytes | None:
    """The next block, None when there is none."""
    return await anext(blocks, None)


def forget(coming: asyncio.Future[bytes | None]) -> None:
    """Wait for a block no more; nobody is to hear how that ended either."""
    coming.cancel()
    coming.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


class Opening:
    """What has come of an answer, and what is still to come. `close` must be called."""

    def __init__(self, blocks: AsyncIterator[bytes]) -> None:
        self._blocks = blocks
        self._held = b""
        self._coming: asyncio.Future[bytes | None] | None = None

    async def first_event(self, patience: Awaitable[None]) -> bytes | None:
        """The first event, None if it does not come before `patience` ends, or is too long to be held.

        Raises UpstreamError when the answer ends before it.
        """
        alarm = asyncio.ensure_future(patience)
        try:
            while (event := first_event(self._held)) is None and len(self._held) <= MAX_HELD_BYTES:
                if not await self._more(alarm):
                    break
        finally:
            alarm.cancel()
        return event

    async def _more(self, alarm: asyncio.Future[None]) -> bool:
        """Hold one more block; whether it came before the alarm."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(or_end(self._blocks))
        either: set[asyncio.Future[Any]] = {self._coming, alarm}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._coming.done():
            return False
        block, self._coming = self._coming.result(), None
        if block is None:
            raise UpstreamBroken("ended before its first event")
        self._held += block
        return True

    async def blocks(self) -> AsyncIterator[bytes]:
        """Everything: what is held, in one block, and what comes after it."""
        if self._held:
            yield self._held
        if self._coming is not None:
            block, self._coming = await self._coming, None
            if block is None:
                return
            yield block
        async for block in self._blocks:
            yield block

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._coming is not None:
            forget(self._coming)
