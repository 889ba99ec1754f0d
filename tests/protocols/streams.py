"""Streams in pieces, as a network may cut them."""

from collections.abc import Iterator

from kvguard.protocols.sse import StreamFormat, StreamReader


def read(form: StreamFormat, *blocks: bytes) -> StreamReader:
    """A reader that has seen these blocks."""
    reader = StreamReader(form)
    for block in blocks:
        reader.feed(block)
    return reader


def cut_everywhere(stream: bytes) -> Iterator[tuple[bytes, ...]]:
    """The stream in two blocks, in every way there is, and in single bytes."""
    yield from ((stream[:cut], stream[cut:]) for cut in range(len(stream) + 1))
    yield tuple(stream[at : at + 1] for at in range(len(stream)))
