"""Admission values for tests: a demand, an occupancy at a given load, and strategies over both."""

from hypothesis import strategies as st

from kvguard.admission.blocks import Ahead, BlockGroup, BlockRule
from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.lengths import LengthPolicy, OutputLengths
from kvguard.admission.occupancy import Occupancy, OccupancyPolicy
from kvguard.admission.prefix import PrefixMark
from kvguard.admission.usage import EngineUsage, UsageSample

BLOCK = 16
RULE = BlockRule.plain(BLOCK)


def demand(*prompts: int, cap: int | None = 16, expected: int | None = None, **fields: object) -> Demand:
    """A demand for its whole cap, unless `expected` says otherwise; 512 where no cap is known."""
    if expected is None:
        expected = 512 if cap is None else cap
    return Demand(
        **{"prompts": prompts or (16,), "output_cap": cap, "asked_cap": cap, "expected_output": expected, **fields}
    )


def engine(used_ratio: float | None, *, blocks: int | None = 100, name: str = "0", **fields: object) -> EngineUsage:
    return EngineUsage(
        engine=name, capacity_blocks=blocks, block_size=BLOCK if blocks else None, used_ratio=used_ratio, **fields
    )


def sample(*ratios: float | None, blocks: int | None = 100, **fields: object) -> UsageSample:
    """One engine of 100 blocks for each ratio."""
    return UsageSample(
        engines=tuple(engine(ratio, blocks=blocks, name=str(n), **fields) for n, ratio in enumerate(ratios))
    )


def learned(*lengths: int, cap: int | None = None, **policy: object) -> OutputLengths:
    """What is known after answers of these lengths, believed from the first one on."""
    seen = OutputLengths(LengthPolicy(**{"min_answers": 1, **policy}))
    for length in lengths:
        seen.observe(length, cap=cap)
    return seen


# Lengths of answers and the caps they ended under.
answers = st.lists(st.tuples(st.integers(1, 500), st.none() | st.integers(1, 1000)), max_size=8)


def learned_from(seen: list[tuple[int, int | None]]) -> OutputLengths:
    lengths = learned()
    for length, cap in seen:
        lengths.observe(length, cap=cap)
    return lengths


def unscraped(lengths: OutputLengths | None = None, **policy: object) -> Occupancy:
    """A backend nothing is known of yet, but perhaps how long its answers get."""
    known = {"blocks": policy.pop("capacity_blocks", None), "block_size": policy.pop("block_size", None)}
    capacity = CapacityPolicy(**known, layout_of=policy.pop("layout_of", None))
    return Occupancy(OccupancyPolicy(capacity=capacity, **policy), learned() if lengths is None else lengths)


def occupancy(
    foreign_ratio: float = 0.0,
    *held: Demand,
    blocks: int = 100,
    now: float = 0.0,
    waiting: int = 0,
    lengths: OutputLengths | None = None,
    **policy: object,
) -> Occupancy:
    """A backend scraped at `now` with so much foreign load, and these demands reserved since."""
    built = unscraped(lengths, **policy)
    built.observe(sample(foreign_ratio, blocks=blocks, waiting=waiting), asked_at=now)
    for one in held:
        built.ledger.reserve(one, now=now)
    return built


@st.composite
def demands(draw: st.DrawFn, *, largest: int = 400) -> Demand:
    """Any demand a parser can make, small enough to matter to a hundred blocks."""
    cap = draw(st.none() | st.integers(1, largest))
    return Demand(
        prompts=tuple(draw(st.lists(st.integers(0, largest), min_size=1, max_size=3))),
        copies=draw(st.integers(1, 3)),
        output_cap=cap,
        asked_cap=None if cap is None else draw(st.none() | st.integers(cap, 2 * largest)),
        expected_output=draw(st.integers(0, largest if cap is None else cap)),
        min_tokens=draw(st.sampled_from((0, 1, 50))),
        beams=draw(st.booleans()),
        fixed_length=draw(st.booleans()),
        traits=draw(st.frozensets(st.sampled_from(list(Trait)), max_size=1)),
    )


def aheads() -> st.SearchStrategy[Ahead]:
    """Any way of reserving."""
    tokens = st.none() | st.integers(1, 300)
    return st.builds(
        Ahead,
        piece_tokens=tokens,
        open_piece_tokens=tokens,
        speculated_tokens=st.sampled_from((0, 3)),
        sliding_window=tokens,
        window_spares_prompt=st.booleans(),
        padded=st.booleans(),
    )


@st.composite
def block_rules(draw: st.DrawFn, *, windows: bool = True, ahead: bool = False, largest: int = 32) -> BlockRule:
    """Any layout an engine may have: full, constant and perhaps sliding and chunked groups with blocks up to `largest`.

    With `ahead` the engine may be one that reserves.
    """
    sizes, counts, kept = st.integers(1, largest), st.integers(1, 3), st.integers(1, 300)
    groups = st.builds(BlockGroup, block_size=sizes, count=counts)
    if windows:
        groups |= st.builds(BlockGroup, block_size=sizes, count=counts, sliding_window=kept)
        groups |= st.builds(BlockGroup, block_size=sizes, count=counts, attention_chunk_size=kept)
    return BlockRule(
        groups=tuple(draw(st.lists(groups, max_size=3))),
        state_blocks=draw(st.integers(0, 2)),
        spanning_state_blocks=draw(st.integers(0, 2)),
        step_tokens=draw(st.integers(1, 300)),
        lookahead_tokens=draw(st.sampled_from((0, 3))),
        ahead=draw(st.none() | aheads()) if ahead else None,
    )


def marks(*path: int, every: int = 4 * BLOCK, more: int = 0) -> tuple[PrefixMark, ...]:
    """A mark every so many tokens, and `more`, of a prompt that takes these turns: the same turns, the same marks."""
    return tuple(
        PrefixMark(int("".join(map(str, (1, *path[: number + 1])))), every * (number + 1) + more)
        for number in range(len(path))
    )


@st.composite
def alike(draw: st.DrawFn, *, longest: int = 100, agreed: bool = False) -> Demand:
    """Demands of one prompt that often begin as others do, with caps of `longest` at most.

    Unless it is `agreed`, they differ a little in how many tokens are before a mark.
    """
    path = draw(st.lists(st.integers(0, 1), max_size=4))
    cap = draw(st.integers(1, longest))
    return demand(
        draw(st.integers(1, 350)),
        cap=cap,
        expected=draw(st.integers(0, cap)),
        copies=draw(st.sampled_from((1, 1, 1, 3))),
        streamed=draw(st.booleans()),
        slack_tokens=draw(st.sampled_from((0, 0, 1))),
        prefix=marks(*path, more=0 if agreed else draw(st.sampled_from((0, 0, 20)))),
    )
