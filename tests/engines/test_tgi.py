"""What TGI tells, release by release, and what is made of it."""

import json
from pathlib import Path

import pytest

from kvguard.admission.blocks import Ahead
from kvguard.admission.release import Release
from kvguard.engines.exposition import ExpositionError
from kvguard.engines.reading import ModelEntry, ServerFacts
from kvguard.engines.tgi import TgiServer, assumed, parse_info, parse_tgi, release_of, tgi_reading
from tests.kit.recordings import recorded

DATA = Path(__file__).parents[1] / "data" / "tgi"
MISTRAL, LLAMA = "mistralai/Mistral-7B-Instruct-v0.2", "meta-llama/Llama-3.1-8B-Instruct"
V2 = Ahead(window_spares_prompt=True, padded=True)
PIECES = Ahead(piece_tokens=1024, open_piece_tokens=1024)
ALIAS = frozenset({"max_completion_tokens"})


@pytest.mark.parametrize(
    ("file", "model", "context", "capacity", "bound", "block_size", "ahead", "release"),
    [
        ("v1.4.5", MISTRAL, 4096, 47200, False, 16, V2, Release(default_output_tokens=100, ignored_caps=ALIAS)),
        ("v2.0.4", MISTRAL, 4096, 47200, False, 16, V2, Release(default_output_tokens=100, ignored_caps=ALIAS)),
        ("v2.2.0", MISTRAL, 4096, 47200, False, 16, V2, Release(default_output_tokens=100, ignored_caps=ALIAS)),
        # From here on no release says how large its cache is.
        ("v2.4.1", LLAMA, 4096, 4096, True, 1, Ahead(), Release(default_output_tokens=100, ignored_caps=ALIAS)),
        ("v3.3.7", LLAMA, 32768, 32768, True, 1, PIECES, Release()),
        ("v3.3.7_local_dir", "/data/model", 1024, 1024, True, 1, PIECES, Release()),
    ],
)
def test_info_by_release(
    file: str,
    model: str,
    context: int,
    capacity: int,
    bound: bool,
    block_size: int,
    ahead: Ahead,
    release: Release,
) -> None:
    """The cache's size up to 2.2, a lower bound since; caps and reservations as the release has them."""
    name = model.encode()
    assert parse_info((DATA / f"info_{file}.json").read_bytes()) == ServerFacts(
        models=frozenset({"tgi", model}),
        parents={"tgi": model},
        listing={model: ModelEntry(body=b'{"id":"%b","object":"model","created":0,"owned_by":"%b"}' % (name, name))},
        context_tokens=context,
        permits=128,
        release=release,
        capacity_tokens=capacity,
        lower_bound=bound,
        block_size=block_size,
        ahead=ahead,
    )


@pytest.mark.parametrize(
    ("server", "told", "capacity", "bound"),
    [
        (TgiServer(), None, 4096, True),
        (TgiServer(estimated_tokens=50_000), None, 50_000, False),
        (TgiServer(estimated_tokens=50_000), 40_000, 40_000, False),
        (TgiServer(estimated_tokens=50_000, capacity_tokens=30_000), 40_000, 30_000, False),
    ],
)
def test_where_the_size_of_the_cache_comes_from(
    server: TgiServer, told: int | None, capacity: int, bound: bool
) -> None:
    """The operator, `/info`, the estimate, the longest request: the first of them that there is."""
    info = {"version": "3.3.6-dev0", "max_total_tokens": 4096, "max_batch_total_tokens": told}
    facts = parse_info(json.dumps(info).encode(), server)
    assert (facts.capacity_tokens, facts.lower_bound) == (capacity, bound)
    assert (facts.models, facts.parents, facts.listing, facts.permits) == ({"tgi"}, {}, {}, None)


def test_the_list_of_models_has_the_entry_that_tgi_writes() -> None:
    """To the byte, made of the name in `/info` alone."""
    facts = parse_info((DATA / "info_v3.3.7.json").read_bytes())
    assert b'{"object":"list","data":[%b]}' % facts.listing[LLAMA].body == recorded("models_response_v3.json")


def test_what_the_operator_knows_goes_over_the_release() -> None:
    """Version, block size, speculation and the window are the operator's to say."""
    server = TgiServer(version=(3, 2, 0), block_size=256, speculate=3, prefix_caching=False, sliding_window=4096)
    facts = parse_info(b'{"version": "3.3.7", "max_total_tokens": 9}', server)
    assert facts.block_size == 256
    assert facts.ahead == Ahead(piece_tokens=1024, open_piece_tokens=1024, speculated_tokens=3, sliding_window=4096)


def test_a_release_nobody_can_read_counts_as_the_last() -> None:
    """A build from a branch."""
    assert parse_info(b'{"version": "nightly", "max_total_tokens": 9}').release == release_of((3, 3, 7))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"version": "3.3.7"}', b'{"version": "3.3.7", "max_total_tokens": 0}', b"\xff"]
)
def test_anything_else_is_no_info(body: bytes) -> None:
    """It raises ValueError and becomes nothing."""
    with pytest.raises(ValueError):  # noqa: PT011  msgspec's message is not ours
        parse_info(body)


KNOWN = ServerFacts(capacity_tokens=35_001, block_size=1, ahead=PIECES)


@pytest.mark.parametrize(
    ("file", "running", "waiting", "reserved", "steps", "answers"),
    [
        ("busy", 12, 9, 31_250, 1545, 60),
        ("busy_excerpt", 12, 9, 31_250, 1545, 60),
        ("full_queue", 13, 110, 34_711, 2460, 80),
        ("idle_after_traffic", 0, 0, 0, 925, 40),
        ("real_capture_excerpt", 0, 0, 0, 1525, None),
    ],
)
def test_a_page(file: str, running: int, waiting: int, reserved: int, steps: int, answers: int | None) -> None:
    """Nearly two thousand lines, HELP missing here and there and a summary among the histograms, come to six facts."""
    [engine] = parse_tgi((DATA / f"metrics_v3_{file}.txt").read_text(), KNOWN).engines
    assert (engine.running, engine.waiting, engine.steps_total) == (running, waiting, steps)
    assert engine.used_ratio == pytest.approx(reserved / 35_000)
    assert (engine.capacity_blocks, engine.capacity_tokens, engine.block_size) == (35_000, 35_000, 1)
    assert engine.ahead == PIECES
    assert (engine.generation_lengths or ((None, None),))[-1][1] == answers


def test_an_empty_page_is_a_server_that_has_not_begun() -> None:
    """Nothing runs, nothing waits, nothing is held: not unknown."""
    [engine] = parse_tgi((DATA / "metrics_v3_cold.txt").read_text(), KNOWN).engines
    assert (engine.running, engine.waiting, engine.used_ratio, engine.steps_total) == (0, 0, 0.0, 0.0)
    assert engine.generation_lengths is None


@pytest.mark.parametrize(
    ("page", "running", "waiting", "used"),
    [
        # The first request is being validated, queued, computed.
        ("tgi_request_count 1\n", 0, 0, 0.0),
        ("tgi_queue_size 1\n", 0, 1, 0.0),
        ("tgi_queue_size 0\ntgi_batch_current_size 1\ntgi_batch_current_max_tokens 3500\n", 1, 0, 0.1),
        # It has answered, and has no batch: a back end that has no such numbers at all.
        ("tgi_request_success 1\n", None, None, None),
        ("lorax_batch_current_max_tokens 70000\nlorax_batch_current_size 7\nlorax_queue_size 2\n", 7, 2, 2.0),
        ("tgi_batch_current_max_tokens NaN\ntgi_request_success 1\n", None, None, None),
        ("tgi_batch_current_max_tokens -1\ntgi_queue_size 2\n", 0, 2, 0.0),
        ("\n \n", 0, 0, 0.0),
        # Not TGI's.
        ("not_tgi_queue_size 4\n", None, None, None),
        ("vllm:num_requests_running 4\n", None, None, None),
        ("<html>Sign in</html>", None, None, None),
    ],
)
def test_pages_of_a_few_lines(page: str, running: int | None, waiting: int | None, used: float | None) -> None:
    """A series that has not begun is nothing, one that is not there at all is not known."""
    [engine] = parse_tgi(page, KNOWN).engines
    assert (engine.running, engine.waiting, engine.used_ratio) == (running, waiting, used)


@pytest.mark.parametrize(
    "lines",
    [
        'tgi_request_generated_tokens_bucket{le="x"} 1\n',
        "tgi_request_generated_tokens_bucket 1\n",
    ],
)
def test_a_histogram_without_bounds_is_none(lines: str) -> None:
    """The rest of the page stands."""
    [engine] = parse_tgi(f"tgi_queue_size 2\n{lines}", KNOWN).engines
    assert (engine.generation_lengths, engine.waiting) == (None, 2)


def test_a_broken_line_of_what_is_read_is_said() -> None:
    """Any other goes unnoticed."""
    with pytest.raises(ExpositionError):
        parse_tgi("tgi_queue_size {\n", KNOWN)
    assert parse_tgi("tgi_request_count {\n", KNOWN).engines[0].running == 0


@pytest.mark.parametrize("facts", [ServerFacts(), ServerFacts(capacity_tokens=16, block_size=16)])
def test_a_cache_of_unknown_size_has_no_usage(facts: ServerFacts) -> None:
    """Neither before `/info` was read, nor where nothing but the block kept for health checks is left."""
    [engine] = parse_tgi("tgi_batch_current_max_tokens 12\n", facts).engines
    assert (engine.used_ratio, engine.capacity_blocks) == (None, None)


def test_a_lower_bound_rises_to_what_was_seen() -> None:
    """A server known for 100 tokens that reserved 400 has 400 at least, also when they are free again."""
    reading = tgi_reading()
    facts = reading.facts(b'{"version": "3.3.7", "max_total_tokens": 101}')
    busy, later = "tgi_batch_current_max_tokens 400\n", "tgi_batch_current_max_tokens 100\n"
    assert [reading.usage(page, facts).engines[0].capacity_tokens for page in (later, busy, later)] == [100, 100, 399]
    known = tgi_reading(TgiServer(capacity_tokens=101))
    facts = known.facts(b'{"version": "3.3.7", "max_total_tokens": 101}')
    assert [known.usage(page, facts).engines[0].capacity_tokens for page in (busy, later)] == [100, 100]
    assert known.usage(busy, ServerFacts(lower_bound=True)).engines[0].used_ratio is None


def test_a_server_started_anew_has_shown_nothing_yet() -> None:
    """Its counters begin at 0; what the one before held says nothing of it. A page that is not TGI's says neither."""
    reading = tgi_reading()
    facts = reading.facts(b'{"version": "3.3.7", "max_total_tokens": 101}')
    steps = 'tgi_batch_inference_count{method="decode"}'
    pages = [
        f"tgi_batch_current_max_tokens 400\n{steps} 7\n",
        f"tgi_batch_current_max_tokens 100\n{steps} 7\n",
        "<html>",
        f"tgi_batch_current_max_tokens 100\n{steps} 8\n",
        "",
        f"tgi_batch_current_max_tokens 100\n{steps} 9\n",
    ]
    assert [reading.usage(page, facts).engines[0].capacity_tokens for page in pages] == [100, 399, 399, 399, 100, 100]


@pytest.mark.parametrize(
    ("version", "default", "ignored"),
    [
        ((0, 9, 4), 20, ALIAS),
        ((1, 2, 0), None, ALIAS),
        ((3, 0, 1), None, ALIAS),
        ((3, 0, 2), None, frozenset()),
    ],
)
def test_releases(version: tuple[int, int, int], default: int | None, ignored: frozenset[str]) -> None:
    """What an absent cap means, and from when on the other name of `max_tokens` is known."""
    assert release_of(version) == Release(default_output_tokens=default, ignored_caps=ignored)


def test_what_is_taken_of_a_server_nobody_has_asked() -> None:
    """The newest release, or the operator's, and a capacity only if somebody knows it."""
    assert assumed(TgiServer()) == ServerFacts(release=release_of((3, 3, 7)), block_size=1, ahead=PIECES)
    known = assumed(TgiServer(version=(2, 2, 0), estimated_tokens=500))
    assert (known.capacity_tokens, known.block_size, known.ahead) == (500, 16, V2)
