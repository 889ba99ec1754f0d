"""Which series an expression reads, and through which functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import promql_parser as promql

OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


@dataclass(frozen=True)
class Read:
    """A selector in an expression: its metric, what its labels are held against, its range, and what is around it,
    innermost first.
    """

    metric: str
    matchers: Mapping[str, str]
    range_seconds: float | None
    functions: tuple[str, ...]


def reads(expression: str) -> list[Read]:
    """Every selector of an expression. Raises ValueError for one that is not PromQL."""
    return list(_reads(promql.parse(expression), ()))


def _reads(node: promql.Expr, around: tuple[str, ...], seconds: float | None = None) -> Iterator[Read]:
    match node:
        case promql.VectorSelector():
            matchers = {each.name: f"{OPERATORS[str(each.op)]}{each.value}" for each in node.matchers.matchers}
            yield Read(node.name or "", matchers, seconds, around)
        case promql.MatrixSelector():
            yield from _reads(node.vector_selector, around, node.range.total_seconds())
        case promql.Call():
            for argument in node.args:
                yield from _reads(argument, (node.func.name, *around))
        case promql.BinaryExpr():
            yield from _reads(node.lhs, around)
            yield from _reads(node.rhs, around)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield from _reads(node.expr, around)
        case promql.NumberLiteral() | promql.StringLiteral():
            return
        case _:
            raise ValueError(f"not looked into: {node.prettify()}")
