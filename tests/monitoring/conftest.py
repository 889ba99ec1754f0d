"""kvguard in front of its embedded engine, as its users run it. Marks every test here `monitoring`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.kvguard_process import KvguardProcess, kvguard_process

# 128 blocks of 16 tokens, which a dozen of the requests of an overload fill.
ENGINE = "sim://?num_gpu_blocks=129&max_model_len=1024&max_num_seqs=32"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the items below this directory only."""
    item.add_marker(pytest.mark.monitoring)


@pytest.fixture
def kvguard(tmp_path: Path) -> Iterator[KvguardProcess]:
    """A process of `kvguard serve`, ready, with a small engine that an overload fills within seconds."""
    with kvguard_process(ENGINE, tmp_path / "kvguard.log") as running:
        yield running
