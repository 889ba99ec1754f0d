"""How property tests run here: the same examples every time, nothing written to disk."""

from hypothesis import settings

deterministic = settings(derandomize=True, database=None, deadline=None, max_examples=75)
