"""The grammar of a Prometheus page: what is read, what is passed over, what is an error."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from kvguard.engines.exposition import ExpositionError, Sample, parse_samples


def one(text: str, name: str = "m") -> Sample:
    (sample,) = parse_samples(text, {name})
    return sample


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("m 1", {}, 1.0),
        ("m{} 1", {}, 1.0),
        ("m\t-2.5e-3", {}, -0.0025),
        ("  m  3  ", {}, 3.0),
        ('m{a="b"} 1', {"a": "b"}, 1.0),
        ('m{a="b"}1', {"a": "b"}, 1.0),
        ('m { a = "b" , c = "d" , } 1', {"a": "b", "c": "d"}, 1.0),
        ('m{a=""} 1', {"a": ""}, 1.0),
        ('m{a="}",b=",",c="{x=1} 2"} 3', {"a": "}", "b": ",", "c": "{x=1} 2"}, 3.0),
        (r'm{a="\"",b="\\",c="\n",d="\\n",e="\t"} 3', {"a": '"', "b": "\\", "c": "\n", "d": r"\n", "e": r"\t"}, 3.0),
        ("m 1 1796033052665", {}, 1.0),
        ("m 1 1796033052.665", {}, 1.0),
        ('m{a="b"} 1 -1', {"a": "b"}, 1.0),
        ('m 1 # {trace_id="a # b"} 0.5 1796033052.6', {}, 1.0),
        ('m{a="b"} 1 1796033052.6 # {trace_id="x"} 0.5', {"a": "b"}, 1.0),
        ("m +Inf", {}, math.inf),
        ("m -Inf", {}, -math.inf),
        ("m 1\r", {}, 1.0),
    ],
)
def test_reads_every_form_a_sample_line_may_take(line: str, labels: dict[str, str], value: float) -> None:
    """Blanks, escapes, brackets inside values, time stamps and exemplars leave name, labels and value intact."""
    assert one(line) == Sample("m", labels, value)


def test_nan_is_a_value() -> None:
    """NaN is handed on; whether it counts is the reader's decision."""
    assert math.isnan(one("m NaN").value)


def test_only_wanted_names_are_read() -> None:
    """A longer name with a wanted one as its head, comments and broken lines of other metrics are passed over."""
    page = '# HELP m help {" text\n# TYPE m gauge\nm_total 1\nm:x 2\nother{a="\nm 3\n\nm{a="b"} 4\n# EOF\n'
    assert parse_samples(page, {"m"}) == [Sample("m", {}, 3.0), Sample("m", {"a": "b"}, 4.0)]


def test_a_name_without_a_sample_is_empty() -> None:
    """An empty page, and a page of something else, hold no samples."""
    assert parse_samples("", {"m"}) == []
    assert parse_samples("<html>502 Bad Gateway</html>", {"m"}) == []


@pytest.mark.parametrize(
    "line",
    [
        "m",
        "m{} ",
        "m one",
        "m 1_000",
        "m 1 2 3",
        "m 1#x",
        "m{",
        'm{a="b',
        'm{a="b" 1',
        'm{a="b\\"} 1',
        'm{a="b",,c="d"} 1',
        'm{a="b"c="d"} 1',
        "m{a=b} 1",
        'm{"a"="b"} 1',
        'm{a="b",a="c"} 1',
    ],
)
def test_a_broken_wanted_line_is_an_error_with_its_number(line: str) -> None:
    """A cut-off or malformed line of a wanted metric raises and says which line it was."""
    with pytest.raises(ExpositionError, match="line 3 ") as caught:
        parse_samples(f"# TYPE m gauge\nother 1\n{line}\nm 1", {"m"})
    assert caught.value.line_number == 3


def test_an_error_echoes_at_most_80_characters() -> None:
    """A huge or binary line does not flood the log."""
    with pytest.raises(ExpositionError) as caught:
        parse_samples("m{" + "\x00\N{GRINNING FACE}" * 100_000, {"m"})
    echo = str(caught.value).removeprefix("line 1 is not a metric sample: ")
    assert len(echo) == 80


@settings(deadline=None)
@given(st.lists(st.text(), min_size=2, max_size=2))
def test_label_values_survive_the_round_trip(values: list[str]) -> None:
    """Whatever a client library writes as a label value, in either format, comes back unchanged."""
    registry = CollectorRegistry()
    Gauge("m", "help", ["a", "b"], registry=registry).labels(*values).set(1)
    for page in (generate_latest(registry), generate_openmetrics(registry)):
        assert one(page.decode()).labels == dict(zip("ab", values, strict=True))
