"""The command: asked of a running kvguard, or worked out from settings alone."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvguard.cli import main
from kvguard.explain import _sizes, report
from kvguard.protocols import openai_completions
from tests.kit.dialects import DIALECTS, Dialect
from tests.kit.explaining import SMALL, backend_at, explained, explainer_of

BODY = {"model": "m", "prompt": [1] * 16, "max_tokens": 160}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 100,
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def body(tmp_path: Path) -> str:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(BODY))
    return str(file)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main(["explain", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def fault(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert all(line.startswith("kvguard: ") for line in err.splitlines())
    return err


def test_offline_it_prints_verdict_reasons_sizes_and_room(capsys: pytest.CaptureFixture[str], body: str) -> None:
    """The same decision over an assumed occupancy, in words and numbers."""
    main(["explain", body, "--capacity-blocks", "100", "--usage", "0.72"])
    assert capsys.readouterr().out.splitlines() == [
        "degrade on sim, tier 1: max_tokens=160->80",
        "  TRIM is in force, because projected 0.720 without this request is at or above 0.7 (tiers.trim_at)",
        "  the output cap is lowered from 160 to 80 (degrade.trim_factor 0.5, degrade.max_output_tokens 512, "
        "degrade.floor_tokens 64)",
        "  tokens     16 prompt (counted: ids), 160 expected output (cap 160), 176 in all",
        "  forecast   160 output, by what the request itself allows",
        "  sequences  1",
        "  blocks     1 for the prompt, 11 at full length",
        "  capacity   100 blocks, 1600 tokens; 23 blocks below REJECT, 28 free",
        "  now        observed 0.720, projected 0.720, reserved 0.720, peak 0.720",
        "  as sent    observed 0.720, projected 0.730, reserved 0.830, peak 0.830",
        "  degraded   observed 0.720, projected 0.730, reserved 0.780, peak 0.780",
    ]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_every_route_is_explained_by_its_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, dialect: Dialect
) -> None:
    """The cap that would be lowered has the route's own name, streamed or not."""
    file = tmp_path / "request.json"
    file.write_text(json.dumps(dialect.body(stream=True, **{dialect.cap: 160})))
    answer = said(capsys, str(file), "--route", dialect.route, "--capacity-blocks", "1000", "--usage", "0.72")
    assert (answer["route"], answer["decision"]) == (dialect.route, "degrade")
    assert answer["changes"] == [f"{dialect.cap}=160->80"]


def test_a_refusal_says_status_reason_and_when_to_come_back(capsys: pytest.CaptureFixture[str], body: str) -> None:
    """Whatever the verdict, the command succeeds; a refusal of everybody is said first."""
    main(["explain", body, "--capacity-blocks", "100", "--usage", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "refuse on sim, tier 3: 503 saturated, Retry-After 5 to 5.5 s"
    assert lines[1].startswith("  refused (saturated) before its body is read")
    main(["explain", body, "--capacity-blocks", "1", "--block-size", "8"])
    assert capsys.readouterr().out.startswith("refuse on sim, tier 0: 400 too_large, never retry\n")


def test_a_config_file_gives_backends_thresholds_and_capacities(
    capsys: pytest.CaptureFixture[str], body: str, tmp_path: Path
) -> None:
    """Two backends, the emptier-by-ratio one first; the thresholds are the file's."""
    config = tmp_path / "guard.yaml"
    config.write_text(
        "backends:\n"
        "  - {url: 'http://a:1', capacity_blocks: 20, block_size: 16}\n"
        "  - {url: 'http://b:1', capacity_blocks: 200, block_size: 16}\n"
        "tiers: {trim_at: 0.4}\n"
    )
    answer = said(capsys, body, "--config", str(config), "--usage", "0.3")
    assert (answer["decision"], answer["backend"]) == ("admit", "b:1")
    main(["explain", body, "--config", str(config), "--usage", "0.5"])
    out = capsys.readouterr().out
    assert "at or above 0.4 (tiers.trim_at)" in out
    assert "\n\nb:1\n" in out
    assert "\n\na:1  (not chosen: degrade)\n" in out


def test_a_config_in_front_of_the_embedded_engine_needs_no_capacity(
    capsys: pytest.CaptureFixture[str], body: str
) -> None:
    """Its size is known, unless another model is asked about."""
    assert said(capsys, body, "--usage", "0")["backends"][0]["capacity"]["blocks"] == 511
    assert "its capacity is not known: give --capacity-tokens" in fault(capsys, body, "--model", "llama-3.1-8b")


@pytest.mark.parametrize(
    ("request_body", "route"),
    [
        ({"inputs": "x"}, "/generate"),
        ({"instances": [{"inputs": "x"}]}, "/vertex"),
        ({"messages": []}, "/v1/chat/completions"),
        ({"prompt": "x"}, "/v1/completions"),
    ],
)
def test_the_route_of_a_body_in_front_of_tgi(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, request_body: dict[str, Any], route: str
) -> None:
    """Each body has its likeliest route there too, and no server is needed."""
    config, body = tmp_path / "guard.yaml", tmp_path / "body.json"
    config.write_text("backends: [{url: 'tgi+http://a:1', capacity_blocks: 20, block_size: 16}]\n")
    body.write_text(json.dumps(request_body))
    assert said(capsys, str(body), "--config", str(config))["route"] == route


def test_a_model_gives_bytes_context_and_layout(capsys: pytest.CaptureFixture[str], body: str, tmp_path: Path) -> None:
    """From a file, a directory or a preset."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for model in (str(tmp_path), str(tmp_path / "config.json")):
        (report,) = said(capsys, body, "--model", model, "--capacity-tokens", "1600")["backends"]
        # 2 (K and V) x 2 layers x 2 heads x 16 x 2 bytes x 16 tokens
        assert report["bytes"]["prompt"] == 4096
        assert report["capacity"] == {"blocks": 100, "tokens": 1600, "bytes": 409_600}
        assert report["output"]["cap"] == 84
    (report,) = said(capsys, body, "--model", "gemma-3-27b", "--capacity-blocks", "9000")["backends"]
    assert report["capacity"]["bytes"] > 0
    main(["explain", body, "--model", "gemma-3-27b", "--capacity-blocks", "9000"])
    assert " GiB; " in capsys.readouterr().out


def test_a_tokenizer_beside_the_model_counts_and_without_one_the_estimate_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Three words are three tokens; a chat without a template is estimated."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    text, chat = tmp_path / "text.json", tmp_path / "chat.json"
    text.write_text('{"prompt": "one two three", "max_tokens": 8}')
    chat.write_text('{"messages": [{"role": "user", "content": "one"}], "max_tokens": 8}')
    flags = ("--model", str(tmp_path), "--capacity-blocks", "100")
    assert said(capsys, str(text), *flags)["backends"][0]["tokens"]["source"] == "learned"
    assert said(capsys, str(chat), *flags)["backends"][0]["tokens"]["estimated"]
    tokenizer = Tokenizer(models.WordLevel({"one": 0, "two": 1, "three": 2}, unk_token="one"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (report,) = said(capsys, str(text), *flags)["backends"]
    assert report["tokens"] == {"prompts": [3], "prompt_sum": 3, "slack": 0, "source": "local", "estimated": False}
    main(["explain", str(chat), *flags])
    assert "prompt (estimated: learned), " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--usage", "1.5"], "--usage 1.5: must be 0 to 1"),
        (["--capacity-blocks", "0"], "--capacity-blocks must be at least 1"),
        (["--capacity-blocks", "9", "--capacity-tokens", "9"], "two answers to one question"),
        (["--model", "no-such-model", "--capacity-blocks", "9"], "--model no-such-model: no such file"),
        (["--model", "broken.json", "--capacity-blocks", "9"], "--model broken.json: "),
        (["--usage", "0", "--route", "/nope"], "--route /nope: There is no route of that path"),
        (["--usage", "0", "--route", "/v1/chat/completions"], "invalid request: 'messages' must be a list"),
        (["--usage", "0", "--url", "http://h:1"], "--usage would be ignored"),
        (["--config", "none.yaml"], "no such file: none.yaml"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_one_line(
    capsys: pytest.CaptureFixture[str], body: str, tmp_path: Path, arguments: list[str], part: str
) -> None:
    """Every fault ends with 2 and says which flag."""
    (tmp_path / "broken.json").write_text('{"model_type": "nobody-knows"}')
    assert part in fault(capsys, body, *arguments)


def test_a_body_that_cannot_be_read_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """The file is named."""
    assert "nothing.json: cannot be read" in fault(capsys, "nothing.json", "--usage", "0")


class _Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_a_key_that_is_not_utf_8_is_a_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Deep inside a body too, and without a traceback."""
    body = tmp_path / "request.json"
    body.write_bytes(b'{"messages":[{"role":"assistant","content":"x","reasoning_content":"a","\xff":1}]}')
    with pytest.raises(SystemExit) as caught:
        main(["explain", str(body), "--capacity-tokens", "1000"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "kvguard: invalid request: 'messages' is not valid JSON\n"


def test_a_request_may_come_on_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file, and with the opt-out noted as not honoured."""
    monkeypatch.setattr(sys, "stdin", _Stdin(json.dumps(BODY | {"n": 2}).encode()))
    main(["explain", "--usage", "0.1", "--opt-out"])
    out = capsys.readouterr().out
    assert "  sequences  2 (1 x 2 copies)\n" in out
    assert out.endswith("note: x-kvguard-degrade: none is ignored, because degrade.allow_opt_out is off\n")


def answering(monkeypatch: pytest.MonkeyPatch, answer: httpx.Response | Exception) -> list[httpx.Request]:
    """Every httpx client gets this answer; the requests it was asked."""
    asked: list[httpx.Request] = []

    def transport(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **named: client(**named, transport=httpx.MockTransport(transport)))
    return asked


def test_a_running_kvguard_is_asked_on_its_admin_port(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """The body as it is, the route as a parameter, the opt-out as a header."""
    asked = answering(monkeypatch, httpx.Response(200, json={"decision": "admit"}))
    main(["explain", body, "--url", "http://guard:9090/", "--route", "/v1/completions", "--opt-out", "--json"])
    assert json.loads(capsys.readouterr().out) == {"decision": "admit"}
    (request,) = asked
    assert str(request.url) == "http://guard:9090/debug/explain?route=%2Fv1%2Fcompletions"
    assert (json.loads(request.content), request.headers["x-kvguard-degrade"]) == (BODY, "none")


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (httpx.ConnectError("refused"), "refused; is kvguard running there"),
        (httpx.ReadTimeout(""), "ReadTimeout; is kvguard running there"),
        (
            httpx.Response(400, json={"error": {"message": "Invalid: no."}}),
            "400: Invalid: no. (--route names its route",
        ),
        (httpx.Response(404, json={"detail": "Not Found"}), "404: not an answer of kvguard's admin port"),
        (httpx.Response(200, text="<html>"), "200: not an answer of kvguard's admin port"),
        (httpx.Response(502, json=[]), "502: not an answer of kvguard's admin port"),
    ],
)
def test_what_a_running_kvguard_cannot_answer_is_a_fault(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    answer: httpx.Response | Exception,
    part: str,
) -> None:
    """Its message, or what stood in the way."""
    answering(monkeypatch, answer)
    assert part in fault(capsys, body)


def test_what_is_not_known_is_said_not_guessed() -> None:
    """No capacity, no blocks; and a refusal by nobody in particular names no backend."""
    explainer, controller = explainer_of(backend_at("b", None))
    controller.draining = True
    lines = report(explained(explainer, SMALL)).splitlines()
    assert lines[0] == "refuse, tier 0: 503 draining, Retry-After 1 to 1.1 s"
    assert lines[1] == "  refused (draining), because kvguard is shutting down: no backend is asked"
    assert lines[-1] == "  capacity   not known"


def test_blocks_that_others_hold_are_named() -> None:
    """Beside those of the whole prompt."""
    explainer, _ = explainer_of(backend_at("b", 0.5))
    said = explained(explainer, {"prompt": [1] * 160, "max_tokens": 16})
    assert "  blocks     10 for the prompt, 11 at full length" in report(said).splitlines()
    said["backends"][0]["shared_blocks"] = 8
    assert "  blocks     10 for the prompt, 8 of them shared, 11 at full length" in report(said).splitlines()


def test_a_route_that_generates_nothing_has_no_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Neither a cap nor a forecast stands where there is nothing to foresee."""
    body = tmp_path / "request.json"
    body.write_text('{"input": [1, 2]}')
    main(["explain", str(body), "--route", "/v1/embeddings", "--capacity-blocks", "100"])
    out = capsys.readouterr().out
    assert "  tokens     2 prompt (counted: ids), no output, 2 in all\n  sequences  1\n" in out
    assert "forecast" not in out


def test_a_read_passes_at_any_tier(capsys: pytest.CaptureFixture[str], body: str) -> None:
    """There is nothing to size, however full the cache is."""
    main(["explain", body, "--route", "/tokenize", "--capacity-blocks", "100", "--usage", "1"])
    assert capsys.readouterr().out.splitlines() == [
        "pass to sim: unchanged",
        "  a read takes no KV and passes at any tier; no backend is known to list this model, so it goes to any, "
        "and the engine may say 404",
    ]


def test_headers_tell_who_asks(capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str) -> None:
    """Offline they are believed; something that is no header is a fault."""
    file = tmp_path / "k.yaml"
    file.write_text("identity: {priority_header: x-priority}\n")
    asked = ["explain", body, "--config", str(file), "--usage", "0.9", "--json"]
    for header, decision in (("X-Priority: exempt", "admit"), ("x-priority:sheddable", "refuse")):
        main([*asked, "--header", header])
        said = json.loads(capsys.readouterr().out)
        assert (said["decision"], said["priority"]) == (decision, header.partition(":")[2].strip())
    assert "--header must be NAME:VALUE" in fault(capsys, body, "--header", "priority")


@pytest.mark.parametrize(
    ("source", "slack", "line"),
    [
        (
            "learned",
            34,
            "  tokens     100 prompt (estimated: learned), 34 headroom, 16 expected output (cap 16), 150 in all",
        ),
        ("learned", 0, "  tokens     100 prompt (estimated: learned), 16 expected output (cap 16), 116 in all"),
        (
            "local",
            34,
            "  tokens     100 prompt (counted: local; parts it cannot count estimated), 34 headroom, "
            "16 expected output (cap 16), 150 in all",
        ),
        ("local", 0, "  tokens     100 prompt (counted: local), 16 expected output (cap 16), 116 in all"),
    ],
)
def test_the_line_of_tokens_adds_up(source: str, slack: int, line: str) -> None:
    """Headroom has its own figure, and what was counted is told from what was not."""
    demand = openai_completions.parse(b'{"prompt":"x"}').demand(
        (100,), slack=(slack,), context_tokens=None, assumed_output_tokens=1
    )
    tokens = {"prompt_sum": demand.prompt_tokens, "slack": demand.slack_tokens, "source": source}
    shown = _sizes(
        {
            "tokens": tokens | {"estimated": source == "learned" or slack > 0},
            "sequences": {"total": 1},
            "output": {"cap": 16, "expected": 16, "forecast": 16, "forecast_source": "cap"},
            "footprint_tokens": sum(demand.prompts) + 16,
        }
    )
    assert shown[0] == line
