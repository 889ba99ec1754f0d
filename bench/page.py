"""Puts what a benchmark found into docs/benchmarks.md, between the markers that bear its name."""

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def write_section(name: str, text: str, page: Path = DOCS) -> None:
    """Replace what stands between `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
