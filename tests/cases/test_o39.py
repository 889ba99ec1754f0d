"""O-39: label values chosen by clients."""

import random
import string

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.raw import raw_client
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

HANDFUL = 5


def word(rng: random.Random) -> str:
    return "zq" + "".join(rng.choices(string.ascii_lowercase, k=12))


async def series(guard: Guard) -> set[str]:
    page = (await guard.admin.get("/metrics")).text
    return {line.rpartition(" ")[0] for line in page.splitlines() if line.startswith("kvguard_")}


async def test_clients_cannot_make_series() -> None:
    """A thousand requests with names, paths, keys, users and ids of the client's own add a handful of series, and of
    histograms of lengths.
    """
    rng = random.Random(39)
    stub = Stub(page=exposition(0.1, blocks=100_000))
    async with running_stub(stub), guarding(stub) as guard, raw_client(guard.service.port) as client:
        before = await series(guard)
        for number in range(1000):
            headers = {"x_request_id": word(rng), "authorization": f"Bearer {word(rng)}", "x_tenant_id": word(rng)}
            generating = number % 2 == 0
            target = rng.choice([CHAT, COMPLETIONS]) if generating else f"/v1/{word(rng)}/{word(rng)}"
            body = {"model": word(rng), "user": word(rng), "prompt": [1], "messages": []}
            await client.request(f"{target}?{word(rng)}", body, **headers)
            assert (await client.answer()).status == (200 if generating else 404)
        after = await series(guard)
        kept = len(guard.backend.occupancy.lengths)
    assert len(stub.hits) == 500
    assert len(after - before) <= HANDFUL
    # For each route those of its class, of everybody on it, and of everybody under such caps.
    assert kept == 2 * 3
    assert not [name for name in after if "zq" in name]
