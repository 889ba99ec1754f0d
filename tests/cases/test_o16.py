"""O-16: switching prefix caching off per request can make things worse."""

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, guarding
from tests.kit.stub import Stub, exposition, running_stub

pytestmark = pytest.mark.anyio

BODIES = {
    COMPLETIONS: {"model": "tiny", "prompt": "hi", "max_tokens": 160},
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 160},
}


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("salt", [{}, {"cache_salt": "t1"}])
async def test_tier_2_leaves_the_prefix_cache_alone(route: str, salt: dict[str, str]) -> None:
    """At 0.86 the answer is shortened, but no salt is added to a request, none taken away, and no field invented."""
    async with running_stub(Stub(page=exposition(0.86), tokens=1)) as stub, guarding(stub) as guard:
        answer = await guard.client.post(route, json={**BODIES[route], **salt})
        assert answer.headers["x-kvguard-tier"] == "2"
        assert answer.headers["x-kvguard-degraded"] == "max_tokens=160->80"
        assert stub.hits[-1].json == {**BODIES[route], **salt, "max_tokens": 80}
