"""`kvguard estimate`: the figures it gives, to the byte, and how it fails."""

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvguard import presets
from kvguard.cli import main
from tests import oracle

ORACLE = oracle.models()
LENGTHS = ("1024", "4096", "8192", "32768", "131072")
MEASURED = [name for name in presets.names() if presets.load(name).source in ORACLE]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def text(self, line: str) -> str:
        main(["estimate", *line.split()])
        out, err = self._capsys.readouterr()
        assert err == ""
        return out

    def json(self, line: str) -> Any:
        return json.loads(self.text(f"{line} --json"))

    def faults(self, *arguments: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main(["estimate", *arguments])
        out, err = self._capsys.readouterr()
        assert ended.value.code == 2
        assert out == ""
        assert "Traceback" not in err
        assert all(line.startswith("kvguard: ") for line in err.splitlines())
        return err.splitlines()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.mark.parametrize("name", ORACLE)
def test_any_measured_file_costs_what_was_measured(name: str, command: Command, tmp_path: Path) -> None:
    """The fields of every published file that was measured give its bytes, and its constant state where it has one."""
    measured = ORACLE[name]
    (tmp_path / "model.json").write_text(json.dumps(measured["config"]))
    answer = command.json(f"model.json --batch 1 --context {','.join(LENGTHS)}")
    assert [entry["kv_bytes"] for entry in answer["entries"]] == [measured["expected_bytes"][n] for n in LENGTHS]
    assert answer["token_tax_bytes"] == measured["kv_bytes_per_token_bf16_below_window"]
    assert answer["settled_token_tax_bytes"] == measured["kv_bytes_per_token_bf16"]
    cross = measured.get("cross_attention", {})
    encoder = cross.get("bytes_per_encoder_token_bf16", 0) * (cross.get("fixed_encoder_tokens") or 0)
    assert answer["state_bytes"] == measured.get("constant_state_bytes", 0) + encoder


def test_a_model_served_otherwise_says_so(command: Command, tmp_path: Path) -> None:
    """MiniCPM3's latent is what it could keep; what vLLM's blocks cost is said beside."""
    (tmp_path / "model.json").write_text(json.dumps(ORACLE["openbmb/MiniCPM3-4B"]["config"]))
    answer = command.json("model.json")
    assert answer["block_bytes"] == 16 * 62 * 15_360
    assert answer["notes"] == ["vLLM serves this model with ordinary attention: its blocks cost 952,320 B a token"]
    assert command.json("model.json --engine tgi")["notes"] == []


@pytest.mark.parametrize("name", MEASURED)
def test_bytes_are_the_measured_ones(name: str, command: Command) -> None:
    """KV of one sequence and of seven is, to the byte, what transformers and vLLM keep, at every measured length."""
    measured = ORACLE[presets.load(name).source]
    answer = command.json(f"{name} --batch 1,7 --context {','.join(LENGTHS)}")
    found = {(entry["batch"], entry["context"]): entry["kv_bytes"] for entry in answer["entries"]}
    expected = {(batch, int(n)): batch * measured["expected_bytes"][n] for batch in (1, 7) for n in LENGTHS}
    assert found == expected
    assert answer["token_tax_bytes"] == measured["kv_bytes_per_token_bf16_below_window"]
    assert answer["settled_token_tax_bytes"] == measured["kv_bytes_per_token_bf16"]
    assert answer["assumptions"] == []


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("jamba-v0.1", "jamba-v0.1"),
        ("mamba-codestral-7b", "mamba-codestral-7b"),
        ("qwen3-next-80b-a3b", "qwen3-next-80b-a3b"),
        ("nemotron-3-nano", "nemotron-3-nano"),
    ],
)
def test_constant_state_is_the_measured_one(name: str, state: str, command: Command) -> None:
    """State is counted once per sequence and apart from the KV."""
    expected = ORACLE[presets.load(state).source]["constant_state_bytes"]
    answer = command.json(f"{name} --batch 3 --context 100")
    assert answer["state_bytes"] == expected
    [entry] = answer["entries"]
    assert entry["state_bytes"] == 3 * expected
    assert entry["bytes"] == entry["kv_bytes"] + entry["state_bytes"]


def test_entries_are_exact_integers(command: Command) -> None:
    """Mistral v0.1 at 32768 tokens: 512 MiB kept of 4 GiB, 256 blocks settled and 768 on the way, per sequence."""
    answer = command.json("mistral-7b-v0.1 --batch 2 --context 32768")
    assert answer["block_size"] == 16
    assert answer["block_bytes"] == 2097152
    assert answer["entries"] == [
        {
            "batch": 2,
            "context": 32768,
            "sequences": 2,
            "kv_bytes": 1073741824,
            "state_bytes": 0,
            "bytes": 1073741824,
            "full_kv_bytes": 8589934592,
            "total_kv_bytes": 1073741824,
            "total_state_bytes": 0,
            "total_bytes": 1073741824,
            "total_full_kv_bytes": 8589934592,
            "blocks": 512,
            "peak_blocks": 1536,
        }
    ]


def test_several_configs_are_a_list(command: Command) -> None:
    """In the order asked for; one alone is an object."""
    assert [answer["name"] for answer in command.json("phi-4 gpt2")] == ["phi-4", "gpt2"]
    assert command.json("gpt2")["name"] == "gpt2"


class TestCorrectedFigures:
    """Figures in circulation that are wrong, and what is right."""

    def test_tokens_beside_the_weights(self, command: Command) -> None:
        """A 24 GiB card with 4.2 GiB of weights and 2 GiB of overhead holds about 146,000 tokens of Mistral 7B."""
        answer = command.json(
            "mistral-7b-v0.3 --gpu-memory 24GiB --weights 4.2GiB --overhead 2GiB --utilization 1 --context 1024"
        )
        capacity = answer["capacity"]
        assert capacity["kv_budget_bytes"] // answer["token_tax_bytes"] == 145817
        assert capacity["blocks"] == 145817 // 16
        assert capacity["longest_sequence_tokens"] == 16 * (145817 // 16 - 1)

    def test_llama_3_has_eight_kv_heads(self, command: Command) -> None:
        """131,072 bytes a token."""
        assert command.json("llama-3-8b")["token_tax_bytes"] == 2 * 32 * 8 * 128 * 2
        assert "8 KV heads of 128" in command.text("llama-3-8b")

    def test_weights_of_a_7b_model(self, command: Command) -> None:
        """14.5 GB in bf16."""
        capacity = command.json("mistral-7b-v0.1 --gpu-memory 24GiB")["capacity"]
        assert capacity["weights_bytes"] == 14483464192
        assert capacity["weights_basis"] == "7.24 billion parameters x 2 bytes"

    def test_beams_of_a_gqa_model(self, command: Command) -> None:
        """1,800 tokens in 3 beams are 0.66 GiB at most."""
        answer = command.json("mistral-7b-v0.3 --batch 1 --context 1800 --beams 3")
        [entry] = answer["entries"]
        assert answer["sequences"] == "batch x 3 beams"
        assert (entry["sequences"], entry["bytes"]) == (3, 3 * 1800 * 131072)
        assert (entry["blocks"], entry["peak_blocks"]) == (339, 339)

    def test_only_the_first_mistral_has_a_window(self, command: Command) -> None:
        """v0.3 keeps everything."""
        assert command.json("mistral-7b-v0.3")["settled_token_tax_bytes"] == 131072
        assert command.json("mistral-7b-v0.1")["settled_token_tax_bytes"] == 0


class TestSeveralGpus:
    """Tensor and pipeline parallel."""

    def test_heads_are_copied_where_there_are_too_few(self, command: Command) -> None:
        """Qwen3-30B-A3B has 4 KV heads: 8 GPUs hold twice the whole."""
        answer = command.json("qwen3-30b-a3b --tp 8 --batch 1 --context 1000")
        assert (answer["token_tax_bytes"], answer["total_token_tax_bytes"]) == (24576, 196608)
        [entry] = answer["entries"]
        assert (entry["kv_bytes"], entry["total_kv_bytes"]) == (24576000, 196608000)

    def test_a_latent_is_on_every_gpu(self, command: Command) -> None:
        """DeepSeek-V3: 70,272 bytes a token on each of 8."""
        answer = command.json("deepseek-v3 --tp 8")
        assert (answer["token_tax_bytes"], answer["total_token_tax_bytes"]) == (70272, 8 * 70272)

    def test_the_fullest_stage_counts(self, command: Command) -> None:
        """61 layers over 4 stages: 16 on the fullest."""
        answer = command.json("deepseek-v3 --pp 4 --batch 1 --context 100")
        assert answer["token_tax_bytes"] == 16 * 1152
        [entry] = answer["entries"]
        assert (entry["kv_bytes"], entry["total_kv_bytes"]) == (16 * 115200, 61 * 115200)
        assert answer["gpus"] == 4

    def test_totals_are_shown(self, command: Command) -> None:
        """One table for each GPU and one for all."""
        text = command.text("gemma-3-27b --tp 2 --batch 1 --context 8192 --gpu-memory 80GiB --overhead 4GiB")
        assert "on each of 2 GPUs" in text
        assert "KV cache on all 2 GPUs" in text
        assert "1.03 GiB" in text
        assert "25.5 GiB weights" in text


class TestCapacity:
    """How many fit, and what binds."""

    def fits(self, command: Command, line: str) -> list[tuple[int, int, str]]:
        answer = command.json(line)
        return [(fit["context"], fit["fits"], fit["limit"]) for fit in answer["capacity"]["requests"]]

    def test_the_cache_binds(self, command: Command) -> None:
        """80 blocks hold 79, so 4 requests of 16 blocks and none of 80."""
        line = "llama-3-8b --gpu-memory 160MiB --weights 0 --utilization 1 --context 256,1264,1265,4096"
        assert self.fits(command, line) == [
            (256, 4, "kv_cache"),
            (1264, 1, "kv_cache"),
            (1265, 0, "one_request_does_not_fit"),
            (4096, 0, "one_request_does_not_fit"),
        ]

    def test_max_num_seqs_binds(self, command: Command) -> None:
        """Short requests run into the engine's limit, each beam being one sequence of it."""
        line = "llama-3-8b --gpu-memory 80GiB --context 16"
        assert self.fits(command, line) == [(16, 256, "max_num_seqs")]
        assert self.fits(command, f"{line} --max-num-seqs 10 --beams 4") == [(16, 2, "max_num_seqs")]
        assert self.fits(command, f"{line} --max-num-seqs 3 --beams 4") == [(16, 0, "max_num_seqs")]
        assert self.fits(command, f"{line} --engine tgi")[0][2] == "kv_cache"

    def test_the_context_binds(self, command: Command) -> None:
        """Nothing longer than the model can count fits: Llama 3 ends at 8192."""
        line = "llama-3-8b --gpu-memory 80GiB --context 8192,8193 --prompt 8000 --output 193"
        assert self.fits(command, line) == [
            (8192, 57, "kv_cache"),
            (8193, 0, "max_position_embeddings"),
            (8192, 0, "max_position_embeddings"),
        ]

    def test_the_last_token_is_never_fed_back(self, command: Command) -> None:
        """A prompt of 1,000 and 25 generated hold 1,024 tokens."""
        answer = command.json("llama-3-8b --gpu-memory 24GiB --context 1 --prompt 1000 --output 25")
        fit = answer["capacity"]["requests"][-1]
        assert (fit["prompt"], fit["output"], fit["context"]) == (1000, 25, 1024)

    def test_a_prefill_must_fit_beside_the_settled(self, command: Command) -> None:
        """Mistral v0.1 at 32768 tokens settles at up to 257 blocks and needs 768 on its way; two share a step."""
        line = "mistral-7b-v0.1 --weights 0 --utilization 1 --context 32768 --gpu-memory"
        expected_by_blocks = {768: 0, 769: 1, 1028: 1, 1029: 2}
        for blocks, expected in expected_by_blocks.items():
            assert self.fits(command, f"{line} {2 * blocks}MiB")[0][1] == expected

    def test_layouts_nobody_can_predict_are_counted_by_bytes(self, command: Command) -> None:
        """Blocks are null and a note says why."""
        answer = command.json(
            "deepseek-v4-flash --gpu-memory 1GiB --weights 0 --utilization 1 --batch 1 --context 8192"
        )
        assert answer["block_size"] is None
        assert answer["entries"][0]["blocks"] is None
        assert answer["entries"][0]["peak_blocks"] is None
        assert answer["capacity"]["blocks"] is None
        assert answer["capacity"]["requests"][0]["fits"] == (1 << 30) // 56664064
        assert any("blocks are not known" in note for note in answer["notes"])
        assert "blocks are not known" in command.text("deepseek-v4-flash --gpu-memory 1GiB --weights 0 --context 9")

    def test_an_encoder_of_any_length_is_counted_by_its_token(self, tmp_path: Path, command: Command) -> None:
        """Its KV is the request's to decide, so it is given per encoder token and stays out of the figures."""
        (tmp_path / "t5.json").write_text(json.dumps(ORACLE["google-t5/t5-small"]["config"]))
        answer = command.json("t5.json --batch 1 --context 100")
        assert answer["encoder_token_bytes"] == 12288
        assert answer["entries"][0]["bytes"] == 100 * 12288
        assert "12,288 B (12 KiB) per encoder token" in command.text("t5.json")

    def test_what_is_not_counted_is_said(self, command: Command) -> None:
        """Without --overhead the answer says what is missing."""
        assert "activations and CUDA graphs are not counted" in command.text("phi-4 --gpu-memory 80GiB")
        assert "not counted" not in command.text("phi-4 --gpu-memory 80GiB --overhead 4GiB")


class TestEngine:
    """What the engine's settings change."""

    def test_formats(self, command: Command) -> None:
        """fp8 halves the KV and leaves the state; the state has a dtype of its own."""
        assert command.json("llama-3-8b --kv-dtype fp8")["token_tax_bytes"] == 65536
        assert command.json("jamba-v0.1 --kv-dtype fp8")["state_bytes"] == command.json("jamba-v0.1")["state_bytes"]
        wide = command.json("jamba-v0.1 --mamba-dtype float32")["state_bytes"]
        assert wide > command.json("jamba-v0.1")["state_bytes"]

    def test_draft_layers(self, command: Command) -> None:
        """DeepSeek-V3's own draft layer keeps a cache like the others."""
        assert command.json("deepseek-v3 --mtp")["token_tax_bytes"] == 62 * 1152

    def test_lookahead(self, command: Command) -> None:
        """Three speculated tokens need room after 1,022."""
        [entry] = command.json("llama-3-8b --speculative-tokens 3 --batch 1 --context 1022")["entries"]
        assert entry["blocks"] == 65

    def test_prefill_steps(self, command: Command) -> None:
        """Smaller steps, a smaller peak."""
        line = "mistral-7b-v0.1 --batch 1 --context 32768"
        assert command.json(f"{line} --max-num-batched-tokens 2048")["entries"][0]["peak_blocks"] == 384

    def test_prefix_caching_keeps_a_second_state(self, command: Command) -> None:
        """One more block a state group while a prefill spans steps."""
        line = "qwen3-next-80b-a3b --batch 1 --context 16384"
        cached = command.json(line)["entries"][0]["peak_blocks"]
        assert cached > command.json(f"{line} --no-prefix-caching")["entries"][0]["peak_blocks"]

    def test_without_the_hybrid_manager(self, command: Command) -> None:
        """Sliding layers of a mixed model keep all; a model that slides throughout keeps its window."""
        flag = "--disable-hybrid-kv-cache-manager"
        mixed = command.json(f"gemma-3-27b {flag} --batch 1 --context 8192")
        assert mixed["entries"][0]["kv_bytes"] == mixed["entries"][0]["full_kv_bytes"] == 8192 * 507904
        assert any("hybrid" in note for note in mixed["notes"])
        assert command.json(f"mistral-7b-v0.1 {flag}")["settled_token_tax_bytes"] == 0

    def test_tgi_keeps_every_token(self, command: Command) -> None:
        """One block a token with flashinfer; no window, no surge."""
        answer = command.json("mistral-7b-v0.1 --engine tgi --batch 1 --context 32768")
        [entry] = answer["entries"]
        assert (answer["block_size"], answer["block_bytes"]) == (1, 131072)
        assert (entry["kv_bytes"], entry["blocks"], entry["peak_blocks"]) == (4294967296, 32768, 32768)
        assert any("TGI" in note for note in answer["notes"])

    def test_tgi_block_size_and_speculation(self, command: Command) -> None:
        """Speculated tokens are reserved with the rest, in whole blocks."""
        [entry] = command.json(
            "llama-3-8b --engine tgi --block-size 256 --speculative-tokens 2 --batch 1 --context 1023"
        )["entries"]
        assert entry["blocks"] == 5


class TestText:
    """What people read."""

    def test_windows_stand_beside_the_full_size(self, command: Command) -> None:
        """A model with windows has two columns a batch, one without has one."""
        windowed = command.text("mistral-7b-v0.1 --batch 1,8 --context 8192").splitlines()
        assert "1 x full   1 x windowed   8 x full   8 x windowed" in next(x for x in windowed if "windowed" in x)
        assert "1 GiB        512 MiB      8 GiB          4 GiB" in windowed[-1]
        assert "windowed" not in command.text("llama-3-8b")

    def test_the_tax_and_the_state_are_said(self, command: Command) -> None:
        """In bytes and in units."""
        text = command.text("mistral-7b-v0.1")
        assert "131,072 B (128 KiB) per token and sequence; 0 B past the windows" in text
        assert "138,149,888 B (132 MiB) per sequence" in command.text("mamba-codestral-7b --gpu-memory 80GiB")

    def test_the_binding_limit_is_said(self, command: Command) -> None:
        """Each of the four."""
        text = command.text("llama-3-8b --gpu-memory 24GiB --context 1,8192,16384 --prompt 10 --output 10")
        assert "--max-num-seqs 256" in text
        assert "KV cache" in text
        assert "longer than max_position_embeddings" in text
        assert "10 + 10" in text
        assert "one does not fit" in command.text("llama-3-8b --gpu-memory 17GiB --weights 15g --context 8192")

    def test_figures_past_the_models_end_are_marked(self, command: Command) -> None:
        """The arithmetic goes on, the model does not."""
        assert "ends at 1,024 positions" in command.text("gpt2 --context 4096")

    @pytest.mark.parametrize("name", presets.names())
    def test_every_preset_can_be_shown(self, name: str, command: Command) -> None:
        """The first line names the model."""
        assert command.text(f"{name} --gpu-memory 4TiB --weights 1GiB").startswith(f"{name} (")

    def test_presets_are_listed(self, command: Command) -> None:
        """--list prints every name with its repository."""
        lines = command.text("--list").splitlines()
        assert tuple(line.split()[0] for line in lines) == presets.names()
        assert "mistralai/Mistral-7B-v0.1" in {line.split()[1] for line in lines}


class TestConfigs:
    """Where a config comes from."""

    def test_file_and_directory(self, tmp_path: Path, command: Command) -> None:
        """Both give what the preset gives."""
        directory = tmp_path / "mine"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(dict(presets.load("mistral-7b-v0.1").config)))
        expected = command.json("mistral-7b-v0.1")["entries"]
        for argument in ("mine", "mine/config.json"):
            answer = command.json(argument)
            assert (answer["name"], answer["entries"]) == ("mine", expected)

    def test_a_bound_says_so(self, tmp_path: Path, command: Command) -> None:
        """What is not understood is an error; --bound gives a number that is marked as a bound."""
        config = {"model_type": "novel", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
        (tmp_path / "novel.json").write_text(json.dumps({**config, "sliding_window_ratio": 0.5}))
        [fault] = command.faults("novel.json")
        assert "sliding_window_ratio" in fault
        assert fault.endswith("--bound gives a stated upper bound")
        assert command.json("novel.json --bound")["assumptions"] != []
        assert "bound: full attention" in command.text("novel.json --bound")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "not JSON"),
            ("[1]", "not a JSON object"),
            ("[" * 100000, "not JSON"),
            ("\xff", "not JSON"),
            ("{}", "missing"),
            ('{"model_type": "llama", "num_hidden_layers": "many"}', "num_hidden_layers"),
        ],
    )
    def test_broken_files(self, content: str, message: str, tmp_path: Path, command: Command) -> None:
        """One line that names the file and the fault."""
        (tmp_path / "broken.json").write_bytes(content.encode("latin-1"))
        [fault] = command.faults("broken.json")
        assert fault.startswith("kvguard: broken.json: ")
        assert message in fault

    def test_a_file_that_is_far_too_large(self, tmp_path: Path, command: Command) -> None:
        """No config.json is that large."""
        (tmp_path / "large.json").write_bytes(b" " * ((8 << 20) + 1))
        assert "larger than" in command.faults("large.json")[0]

    def test_a_directory_without_a_config(self, tmp_path: Path, command: Command) -> None:
        """Said as the system says it."""
        (tmp_path / "empty").mkdir()
        assert command.faults("empty") == ["kvguard: empty: cannot be read: No such file or directory"]

    def test_unknown_names_get_close_ones(self, command: Command) -> None:
        """Every CONFIG at fault has its line."""
        faults = command.faults("mistral-7b", "zzzz")
        assert len(faults) == 2
        assert "did you mean mistral-7b-v0.1 or mistral-7b-v0.3?" in faults[0]
        assert faults[1].startswith("kvguard: zzzz: no such file or directory")

    def test_one_fault_takes_nothing_from_the_others(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What can be estimated is, and the rest is named after it."""
        with pytest.raises(SystemExit):
            main(["estimate", "zzzz", "phi-4", "--json"])
        out, err = capsys.readouterr()
        assert [answer["name"] for answer in json.loads(out)] == ["phi-4"]
        assert err.startswith("kvguard: zzzz: ")


class TestFaults:
    """Bad input: one line each, exit 2."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("", "name a config.json"),
            ("gpt2 --batch 0", "--batch: expected a whole number from 1"),
            ("gpt2 --batch -1", "--batch: expected"),
            ("gpt2 --batch 1,,2", "--batch: expected"),
            ("gpt2 --batch 1.5", "--batch: expected"),
            ("gpt2 --batch 99999999999", "--batch: expected"),
            ("gpt2 --context 0", "--context: expected"),
            ("gpt2 --context many", "--context: expected"),
            ("gpt2 --context " + "9" * 5000, "--context: expected"),
            ("gpt2 --context " + ",".join(["1"] * 65), "--context: expected at most 64 numbers"),
            ("gpt2 --beams 0", "--beams: expected"),
            ("gpt2 --tp 0", "--tp: expected"),
            ("gpt2 --pp x", "--pp: expected"),
            ("gpt2 --pp 13", "--pp 13 is more than the 12 layers"),
            ("gpt2 --tp 5", "--tp 5 does not divide the 12 attention heads"),
            ("qwen2.5-7b --tp 7", "neither divides the 4 KV heads nor is a multiple"),
            ("gpt2 --block-size 0", "--block-size: expected"),
            ("gpt2 --max-num-batched-tokens 1", "--max-num-batched-tokens: expected"),
            ("gpt2 --max-num-seqs 0", "--max-num-seqs: expected"),
            ("gpt2 --speculative-tokens -1", "--speculative-tokens: expected"),
            ("gpt2 --prompt 5", "--prompt and --output are given together"),
            ("gpt2 --output 5", "--prompt and --output are given together"),
            ("gpt2 --prompt 5 --output 5", "--prompt: of use with --gpu-memory only"),
            ("gpt2 --weights 5g", "--weights: of use with --gpu-memory only"),
            ("gpt2 --gpu-memory lots", "--gpu-memory: expected a size"),
            ("gpt2 --gpu-memory 24", "--gpu-memory: 24 bytes are too few"),
            ("gpt2 --gpu-memory 24g --weights heavy", "--weights: expected a size"),
            ("gpt2 --gpu-memory 24g --overhead x", "--overhead: expected a size"),
            ("gpt2 --gpu-memory 24g --utilization 90", "--utilization: expected a ratio"),
            ("gpt2 --gpu-memory 24g --utilization 0", "--utilization: expected a ratio"),
            ("gpt2 --gpu-memory 24g --utilization 1e999999999", "--utilization: expected a ratio"),
            ("gpt2 --gpu-memory 24g --utilization 1/0", "--utilization: expected a ratio"),
            ("phi-4 --gpu-memory 24g", "27.3 GiB of weights leave nothing of 0.9 x 24 GiB for KV"),
            ("gpt2 --gpu-memory 24g --overhead 23g", "and 23 GiB of overhead leave nothing"),
            ("gemma-3n-e4b --gpu-memory 24g", "--weights auto: cannot be computed"),
            ("gpt2 --kv-dtype int3", "kv_cache_dtype: expected one of"),
            ("jamba-v0.1 --mamba-dtype int3", "mamba_ssm_cache_dtype: expected one of"),
            ("gpt2 --kv-dtype fp8_ds_mla", "latent attention (MLA) only"),
            ("gpt2 --mtp", "no layers to draft with"),
            ("llama-3-8b --engine tgi --tp 16", "TGI cannot split 8 KV heads over 16 GPUs"),
            ("llama-3-8b --engine tgi --pp 2", "TGI has no pipeline parallelism"),
            ("gpt2 --plot picture.pdf", "--plot: expected a file ending in .png or .svg"),
            ("gpt2 --plot no/such/place.png", "cannot be written"),
        ],
    )
    def test_one_line(self, arguments: str, message: str, command: Command) -> None:
        """The flag, what was expected, what was given."""
        [fault] = command.faults(*arguments.split())
        assert message in fault

    def test_all_at_once(self, command: Command) -> None:
        """Every flag at fault has its line."""
        faults = command.faults("gpt2", "--batch", "0", "--context", "x", "--block-size", "-2", "--gpu-memory", "?")
        assert [fault.split(":")[1].strip() for fault in faults] == [
            "--batch",
            "--context",
            "--block-size",
            "--gpu-memory",
        ]


class TestPlot:
    """Pictures."""

    @pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
    def test_both_formats(self, ending: str, start: bytes, tmp_path: Path, command: Command) -> None:
        """A picture with every model, the same each time, beside the answer."""
        pytest.importorskip("matplotlib")
        models = "mistral-7b-v0.1 llama-3-8b mistral-7b-v0.3 mixtral-8x7b mamba-codestral-7b whisper-large-v3"
        line = f"{models} --plot one.{ending}"
        assert "mistral-7b-v0.1 (" in command.text(line)
        first = (tmp_path / f"one.{ending}").read_bytes()
        assert first.startswith(start)
        assert len(first) > 5000
        command.text(line)
        assert (tmp_path / f"one.{ending}").read_bytes() == first
        if ending == "svg":
            assert b"mamba-codestral-7b" in first
            assert b"if no layer had a window" in first

    def test_without_matplotlib(self, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
        """The extra to install is named."""
        for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        real = builtins.__import__

        def refuse(name: str, *more: Any, **named: Any) -> Any:
            if name.split(".")[0] == "matplotlib":
                raise ImportError(name)
            return real(name, *more, **named)

        monkeypatch.setattr(builtins, "__import__", refuse)
        assert command.faults("gpt2", "--plot", "a.png") == [
            "kvguard: --plot needs matplotlib: pip install 'kvguard[plot]'"
        ]
