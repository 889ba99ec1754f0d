"""The docs say what the code does."""

import re
from pathlib import Path

import pytest

from docs import generate
from docs.metrics_page import every_metric
from kvguard.admission.reasons import RejectReason
from kvguard.protocols.routes import VLLM, RouteTable
from kvguard.protocols.tgi_routes import TGI
from tests.deploy.rules import rules

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", generate.PAGES)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    """Every setting and metric is documented as it is; `make docs` brings a page up to date."""
    assert (ROOT / "docs" / page).read_text() == generate.PAGES[page]()


def test_every_metric_a_page_names_exists() -> None:
    """No page sends an operator after a metric that is not exported."""
    known = {row.name for row in every_metric()}
    known |= {f"{name}{end}" for name in known for end in ("_bucket", "_count", "_sum")}
    named = {name for page in PAGES for name in re.findall(r"(?<![:\w])kvguard_[a-z_]+\b", page.read_text())}
    assert named <= known


def test_every_recorded_series_a_page_names_is_recorded() -> None:
    """By the rules that are shipped, and under that name."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    named = {name for page in PAGES for name in re.findall(r"\b[a-z_]+:kvguard_[a-z_]+:\w+", page.read_text())}
    assert named
    assert named <= recorded


def test_every_reason_is_documented() -> None:
    """The README lists each code a refused client can meet that this version gives."""
    text = (ROOT / "docs" / "refusals.md").read_text()
    assert {reason.value for reason in RejectReason} == set(re.findall(r"^\| `([a-z_]+)`", text, re.MULTILINE))


@pytest.mark.parametrize(("engine", "table"), [(0, VLLM), (1, TGI)])
def test_every_route_is_documented(engine: int, table: RouteTable) -> None:
    """Each path that is served or passed on has its place in its engine's part of the page about them."""
    part = (ROOT / "docs" / "routes.md").read_text().split("\n## TGI\n")[engine]
    served, _, passed = part.partition("# Passed as they are")
    listed = served.partition("| Route |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(/[^`]*)`", listed)) >= table.generating.keys()
    assert {path: method for method, path in re.findall(r"`(GET|POST) (/[^`]*)`", passed)} == table.reads


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
