"""Reading bodies: small ones at once, large ones in a thread, so that others are served meanwhile."""

import asyncio
from typing import Final

from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.route import Route

AT_ONCE_BYTES: Final = 128 * 1024  # read within some 15 ms, whatever is in them


class BodyReader:
    """Reads one large body at a time: more at once would only take turns, and hold more memory."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, route: Route, body: bytes) -> InferenceRequest:
        """The request in a body. Raises InvalidRequest naming the field at fault."""
        if len(body) <= AT_ONCE_BYTES:
            return route.parse(body)
        async with self._turn:
            return await asyncio.to_thread(route.parse, body)
