"""What the settings of a backend make: its state, its geometry and how its engine is read."""

from typing import Any

import pytest

from kvguard.admission.blocks import Ahead
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.backend_sections import BackendSettings
from kvguard.backends import build_backend, reading_of, tgi_server
from kvguard.engines.kind import EngineKind
from kvguard.engines.tgi import TgiServer, release_of
from kvguard.errors import SettingsError
from kvguard.settings import Settings
from kvguard.trial import find_faults

INFO = b'{"version": "3.3.7", "max_total_tokens": 8192}'


def tgi(**fields: Any) -> BackendSettings:
    """A TGI server."""
    return BackendSettings(url="tgi+http://tgi:3000", **fields)


@pytest.mark.parametrize(
    ("url", "kind", "base"),
    [
        ("http://h:1", EngineKind.VLLM, "http://h:1"),
        ("tgi+http://h:1", EngineKind.TGI, "http://h:1"),
        ("tgi+https://h:1/", EngineKind.TGI, "https://h:1"),
        ("sim://", EngineKind.VLLM, "sim://"),
        ("sim+tgi://", EngineKind.TGI, "sim+tgi://"),
    ],
)
def test_an_address_says_what_speaks_there(url: str, kind: EngineKind, base: str) -> None:
    """The prefix is kvguard's; requests go to what follows it."""
    backend = BackendSettings(url=url)
    assert (backend.kind, backend.base_url) == (kind, base)


@pytest.mark.parametrize(
    "url", ["tgi://h:1", "vllm+http://h:1", "tgi+h:1", "tgi+http://", "tgi+sim://", "http+tgi://h:1"]
)
def test_other_prefixes_are_none(url: str) -> None:
    """A typing error is a fault, not a backend."""
    with pytest.raises(SettingsError, match="tgi\\+http"):
        Settings(backends=[{"url": url}])


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        ({"url": "http://h:1", "tgi": {"max_batch_total_tokens": 9}}, "tgi is for backends of TGI"),
        ({"url": "sim://", "tgi": {"speculate": 1}}, "tgi is for backends of TGI"),
        ({"url": "tgi+http://h:1", "kv_usage_metric": "x"}, "kv_usage_metric is for vLLM"),
        ({"url": "tgi+http://h:1", "tgi": {"gpu_memory": "24GiB"}}, "tells nothing without geometry"),
    ],
)
def test_a_setting_nobody_would_heed_is_a_fault(backend: dict[str, Any], fault: str) -> None:
    """It was meant for something; without it the settings are in order."""
    with pytest.raises(SettingsError, match=fault):
        Settings(backends=[backend])
    assert Settings(backends=[{"url": backend["url"]}]).backends[0].url == backend["url"]


def test_two_kinds_of_engine_do_not_stand_together() -> None:
    """They would read one request in two ways."""
    with pytest.raises(SettingsError, match="vLLM and TGI cannot"):
        Settings(backends=[{"url": "http://a:1"}, {"url": "tgi+http://b:1"}])


def test_what_the_operator_knows_counts_without_info() -> None:
    """A server that does not tell what it is has the capacity and the release of the settings all the same."""
    chosen = tgi(tgi={"max_batch_total_tokens": 2001, "version": "2.0.4"})
    reading = reading_of(chosen)
    sample = reading.usage("tgi_batch_current_max_tokens 992\n", reading.assumed)
    assert (sample.engines[0].capacity_tokens, sample.engines[0].used_ratio) == (1984, 0.5)
    assert build_backend(Settings(), chosen).release == release_of((2, 0, 4))


def test_requests_go_to_the_address_without_its_prefix() -> None:
    """And the label is host and port."""
    built = build_backend(Settings(), tgi())
    assert (built.url, built.name) == ("http://tgi:3000", "tgi:3000")


def test_a_tgi_server_is_what_the_settings_say() -> None:
    """Attention sets the block, unless a block size is given; everything else is left to `/info`."""
    flags = {"attention": "paged", "speculate": 2, "sliding_window": 4096, "prefix_caching": False, "version": "2.4.1"}
    assert tgi_server(tgi(tgi=flags)) == TgiServer(
        version=(2, 4, 1), block_size=16, speculate=2, prefix_caching=False, sliding_window=4096
    )
    assert tgi_server(tgi(tgi=flags, block_size=64)).block_size == 64
    assert tgi_server(tgi()) == TgiServer()


def test_model_and_memory_make_an_estimate() -> None:
    """Llama 3 8B has 16 GB of weights and takes 128 KiB a token, so 24 GiB hold some 50,000 of them; each of two shards
    keeps half the model and half of every token, so that there is room for more than three times as many.
    """
    alone = tgi_server(tgi(geometry="llama-3-8b", tgi={"gpu_memory": "24GiB"})).estimated_tokens
    assert alone is not None
    assert 50_000 < alone < 60_000
    facts = reading_of(tgi(geometry="llama-3-8b", tgi={"gpu_memory": "24GiB"})).facts(INFO)
    assert (facts.capacity_tokens, facts.lower_bound) == (alone, False)
    less = {"gpu_memory": "24GiB", "overhead": "2GiB", "weights": "16GiB"}
    fewer = tgi_server(tgi(geometry="llama-3-8b", tgi=less)).estimated_tokens
    assert fewer == (int(24 * 2**30 * 0.9) - 18 * 2**30) // 131072
    two = tgi_server(tgi(geometry="llama-3-8b", tgi={"gpu_memory": "24GiB", "num_shard": 2})).estimated_tokens
    assert two is not None
    assert two > 3 * alone
    assert tgi_server(tgi(geometry="llama-3-8b")).estimated_tokens is None


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"geometry": "llama-3-8b", "tgi": {"gpu_memory": "8GiB"}}, "tgi.gpu_memory: llama-3-8b"),
        ({"geometry": "jamba-v0.1", "tgi": {"gpu_memory": "640GiB"}}, "jamba-v0.1"),
        ({"tgi": {"gpu_memory": "lots"}}, "expected a size"),
        ({"tgi": {"overhead": "2 apples"}}, "expected a size"),
        ({"tgi": {"version": "three"}}, "three numbers"),
        ({"tgi": {"attention": "flash"}}, "attention"),
    ],
)
def test_what_cannot_be_worked_out_is_a_fault(fields: dict[str, Any], fault: str) -> None:
    """At the start, with the setting's name."""
    with pytest.raises(SettingsError, match=fault):
        find_faults(Settings(backends=[{"url": "tgi+http://tgi:3000", **fields}]))


def test_a_model_of_tgi_has_bytes_and_no_windows() -> None:
    """Mistral slides in vLLM; here every token stays, and a block of two shards costs half."""
    built = build_backend(Settings(), tgi(geometry="mistral-7b-v0.1", tgi={"num_shard": 2}))
    engine = EngineUsage(engine="0", capacity_blocks=1000, block_size=1, used_ratio=0.0, ahead=Ahead())
    built.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    capacity = built.occupancy.capacity
    assert capacity is not None
    assert (capacity.rule.reached_blocks(10_000), capacity.bytes) == (10_000, 1000 * 65_536)


def test_vllm_is_read_as_ever() -> None:
    """By its own list of models."""
    assert reading_of(BackendSettings(url="http://h:1")).facts_path == "/v1/models"
    assert reading_of(tgi()).facts_path == "/info"
