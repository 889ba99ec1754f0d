"""O-09: off by one block."""

import json
from pathlib import Path

import pytest

from kvguard.admission.blocks import BlockRule
from kvguard.admission.footprint import Demand
from kvguard.engines.vllm_blocks import vllm_layout
from kvguard.modelspec.config import kv_cache_spec
from tests.kit.guard import guarding
from tests.kit.stub import running_stub

TOY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 32,
    "torch_dtype": "float16",
}
ROWS = [(16, 17, 3, 12_288), (1, 16, 2, 8_192), (17, 16, 3, 12_288), (33, 100, 9, 36_864)]


@pytest.mark.parametrize(("prompt", "output", "blocks", "size"), ROWS)
def test_a_footprint_is_whole_blocks(prompt: int, output: int, blocks: int, size: int) -> None:
    """A sequence takes ceil((prompt + output) / 16) blocks, and bytes follow from blocks."""
    demand = Demand(prompts=(prompt,), output_cap=output, asked_cap=output, expected_output=output)
    assert demand.reserved_blocks(BlockRule.plain(16)) == blocks
    layout = vllm_layout(kv_cache_spec(TOY))
    assert layout.block_bytes is not None
    assert demand.reserved_blocks(layout.rule) * layout.block_bytes == size


@pytest.mark.anyio
async def test_the_proxy_predicts_and_reports_the_same_blocks(tmp_path: Path) -> None:
    """Each request's decision names its whole blocks, and the capacity is exported in tokens and toy bytes."""
    geometry = tmp_path / "config.json"
    geometry.write_text(json.dumps(TOY))
    async with running_stub() as stub, guarding(stub, backend={"geometry": str(geometry)}) as guard:
        for prompt, output, _, _ in ROWS:
            assert (await guard.complete([1] * prompt, max_tokens=output)).status_code == 200
        predicted = [line["predicted_blocks"] for line in guard.logs if line["event"] == "decision"]
        assert predicted == [blocks for _, _, blocks, _ in ROWS]
        assert guard.metric("kvguard_kv_capacity_tokens", backend="b0") == 1_600
        assert guard.metric("kvguard_kv_capacity_bytes", backend="b0") == 1_600 * 256
