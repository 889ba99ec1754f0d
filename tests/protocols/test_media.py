"""Parts that are not text, and requests without their payloads."""

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, read_fields
from kvguard.protocols.media import (
    MAX_PARTS,
    MediaKind,
    MediaPart,
    apart,
    markdown_media,
    of_content_parts,
)
from kvguard.protocols.picture_size import PEEK_CHARACTERS
from tests.kit.properties import deterministic
from tests.protocols.any_json import fields_of, objects
from tests.protocols.test_picture_size import png, wav

Json = dict[str, object]
IMAGE, AUDIO, VIDEO, FILE = MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO, MediaKind.FILE
PNG = base64.b64encode(png((640, 480))).decode()
WAV = base64.b64encode(wav() + b"\x00" * 3200).decode()
O18_CHARACTERS = 2_500_000


def chat(*parts: object) -> Fields:
    return fields_of({"messages": [{"role": "user", "content": list(parts)}]})


KNOWN = MediaPart(kind=IMAGE, width=640, height=480)
DATA_URL = f"data:image/png;base64,{PNG}"
OPEN_URL = DATA_URL.rstrip("=").encode()  # goes on
SECONDS = (len(WAV) * 3 // 4) / 32_000


def part_found(part: Json) -> tuple[MediaPart, ...]:
    """What is found in a conversation with this part, which is gone afterwards."""
    fields = chat({"type": "text", "text": "before"}, part)
    kept, found = apart(fields)
    assert apart(kept) == (kept, ())
    if not found:
        assert kept is fields
        return ()
    assert json.loads(bytes(kept["messages"]))[0]["content"] == [
        {"type": "text", "text": "before"},
        {"type": "text", "text": f"[{found[0].kind.value}]"},
    ]
    return found


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x/a.png", "detail": "low"}}, MediaPart(kind=IMAGE)),
        ({"type": "image_url", "image_url": {"url": DATA_URL}}, KNOWN),
        ({"type": "input_image", "image_url": DATA_URL, "detail": "high"}, KNOWN),
        ({"type": "input_image", "file_id": "f"}, MediaPart(kind=IMAGE)),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, MediaPart(kind=IMAGE)),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, MediaPart(kind=IMAGE)),
        ({"type": "image", "source": {"type": "url", "url": "http://x"}}, MediaPart(kind=IMAGE)),
        (
            {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
            MediaPart(kind=AUDIO, seconds=SECONDS),
        ),
        ({"type": "input_audio", "input_audio": {"data": WAV}}, MediaPart(kind=AUDIO, seconds=SECONDS)),
        (
            {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{WAV}"}},
            MediaPart(kind=AUDIO, seconds=SECONDS),
        ),
        ({"type": "audio_url", "audio_url": {"url": "data:audio/mp3;base64,AAAA"}}, MediaPart(kind=AUDIO)),
        ({"type": "video_url", "video_url": {"url": "file:///x"}}, MediaPart(kind=VIDEO)),
        ({"type": "input_file", "file_data": "AAAAAAAA"}, MediaPart(kind=FILE)),
        ({"type": "file", "file": {"file_data": "AAAA", "filename": "f"}}, MediaPart(kind=FILE)),
        ({"type": "document", "source": {"data": "AAAA"}}, MediaPart(kind=FILE)),
        ({"type": "prompt_embeds", "data": "AAAA"}, MediaPart(kind=FILE)),
        ({"type": "other", "video_url": "http://x"}, MediaPart(kind=VIDEO)),
    ],
)
def test_parts_by_their_type(part: Json, found: MediaPart) -> None:
    """Size and length are what the payload states; a part that is fetched states nothing."""
    assert part_found(part) == (found,)


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"image_url": "http://x"}, MediaPart(kind=IMAGE)),
        ({"image_url": DATA_URL, "role": "user"}, KNOWN),
        ({"image_url": {"url": DATA_URL}, "type": None}, KNOWN),
        ({"type": "image_url", "image_url": None, "uuid": "u"}, MediaPart(kind=IMAGE)),
        ({"type": "text", "text": "x", "image_url": DATA_URL, "uuid": "u"}, MediaPart(kind=IMAGE)),
        ({"type": "text", "text": "x", "image_url": DATA_URL, "uuid": 0}, MediaPart(kind=IMAGE)),
        ({"type": "image_url", "image_url": {"url": DATA_URL}, "uuid": "u"}, MediaPart(kind=IMAGE)),
        ({"type": "image_url", "image_url": {"url": DATA_URL}, "uuid": None}, KNOWN),
        ({"type": "input_audio", "input_audio": {"data": WAV}, "uuid": "u"}, MediaPart(kind=AUDIO)),
        ({"type": "input_audio", "image_url": "http://x", "uuid": "u"}, MediaPart(kind=IMAGE)),
        ({"image": DATA_URL, "video_url": "http://x", "type": "text", "uuid": "u"}, MediaPart(kind=VIDEO)),
        ({"audio_url": "http://x", "image_embeds": "AAAA"}, MediaPart(kind=IMAGE)),
        ({"video_url": "http://x", "input_audio": {"data": WAV}}, MediaPart(kind=AUDIO, seconds=SECONDS)),
        ({"input_audio": {"data": WAV}, "prompt_embeds": 1, "uuid": "u"}, MediaPart(kind=FILE)),
        ({"tool_reference": 1, "video_url": "http://x"}, MediaPart(kind=VIDEO)),
        ({"file": "x"}, MediaPart(kind=FILE)),
    ],
)
def test_parts_by_their_keys(part: Json, found: MediaPart) -> None:
    """Without a type, and with a `uuid` whatever the type, the engine takes the first key there is in its own order."""
    assert part_found(part) == (found,)


@pytest.mark.parametrize(
    "part",
    [
        "data:image/png;base64,AAAA",
        {"type": "text", "text": "data:image/png;base64,AAAA"},
        {"type": "text", "text": "x", "image_url": "http://x"},
        {"type": "text", "text": "x", "image_url": {"url": "http://x"}, "uuid": None},
        {"type": "refusal", "refusal": "x", "uuid": None, "input_audio": {"data": WAV}},
        {"type": "text", "text": "x", "image": "http://x", "uuid": "u"},
        {"type": "text", "text": "x", "tool_reference": "f", "uuid": "u"},
        {"tool_reference": "f", "name": "a long name", "file": "x"},
        {"type": "file", "tool_reference": "f", "name": "x", "file": "x", "uuid": "u"},
        {"type": "thinking", "thinking": "x"},
        {"type": "tool_use", "input": {"content": {"type": "other"}}},
        {"type": "other", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"type": "other"},
        {"type": "x" * 300},
        {},
        5,
        None,
    ],
)
def test_text(part: object) -> None:
    """What the engine takes for text is counted, whatever else is in the part; a `uuid` of null is none."""
    assert part_found(part) == ()


SMALL = base64.b64encode(png((28, 28))).decode()
UNKNOWN = MediaPart(kind=IMAGE)


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"image_url": {"url": "https://x/huge.jpg"}, "data": SMALL}, UNKNOWN),
        ({"image_url": {"url": "https://x/huge.jpg", "data": SMALL, "image_url": SMALL}}, UNKNOWN),
        ({"image_url": {"url": "https://x/huge.jpg"}, "url": SMALL, "source": {"data": SMALL}, "file": SMALL}, UNKNOWN),
        ({"image_url": {"url": DATA_URL}, "file": f"data:image/png;base64,{SMALL}{'A' * len(PNG)}"}, KNOWN),
        ({"image_url": {"source": {"data": SMALL}}}, UNKNOWN),
        ({"image_url": [SMALL]}, UNKNOWN),
        ({"type": "image_embeds", "image_embeds": SMALL, "image_url": {"url": DATA_URL}}, UNKNOWN),
        ({"type": "image", "image": SMALL, "source": {"data": SMALL}}, UNKNOWN),
        ({"type": "image", "image_url": {"url": DATA_URL}}, UNKNOWN),
    ],
)
def test_a_decoy_sets_no_size(part: Json, found: MediaPart) -> None:
    """A size counts only from the very place the engine reads the picture from."""
    assert part_found({"type": "image_url", **part}) == (found,)


@pytest.mark.parametrize(
    ("form", "seconds"),
    [("wav", SECONDS), ("wav;base64,UklGRg", None), ("w" * 300, None), (None, None), (5, None), ("", None)],
)
def test_a_format_that_brings_its_own_data(form: object, seconds: float | None) -> None:
    """The engine writes the format in front of the data, so one with a comma is what it would play."""
    part: Json = {"type": "input_audio", "input_audio": {"data": WAV, "format": form}}
    assert part_found(part) == (MediaPart(kind=AUDIO, seconds=seconds),)


@pytest.mark.parametrize(("sign", "escape"), [("/", "\\/"), ("/", "\\u002f"), ("+", "\\u002B"), ("A", "\\u0041")])
def test_escapes_in_a_payload(sign: str, escape: str) -> None:
    """PHP escapes every slash and .NET every plus: the size and the length are those of the text they stand for."""
    picture = b'[{"content":[{"type":"image_url","image_url":{"url":"%s"}}]}]' % DATA_URL.replace(sign, escape).encode()
    assert apart({"messages": msgspec.Raw(picture)})[1] == (KNOWN,)
    recording = (
        b'[{"content":[{"type":"input_audio","input_audio":{"data":"%s"}}]}]' % WAV.replace(sign, escape).encode()
    )
    assert apart({"messages": msgspec.Raw(recording)})[1] == (MediaPart(kind=AUDIO, seconds=SECONDS),)


@pytest.mark.parametrize(
    ("kwargs", "found"), [({"min_pixels": 12_845_056}, UNKNOWN), ({"a": 0}, UNKNOWN), ({}, KNOWN), (None, KNOWN)]
)
def test_a_size_the_request_has_changed(kwargs: object, found: MediaPart) -> None:
    """What the processor is told may scale a picture to any size it has."""
    fields = chat({"type": "image_url", "image_url": {"url": DATA_URL}}) | fields_of({"mm_processor_kwargs": kwargs})
    assert apart(fields)[1] == (found,)


def picture_with(url: bytes) -> tuple[MediaPart, ...]:
    part = b'{"type":"image_url","image_url":{"url":"%s"}}' % url
    return apart({"messages": msgspec.Raw(b'[{"content":[%s]}]' % part)})[1]


@pytest.mark.parametrize("escaped", [rb"\/", rb"\u002f", rb"\u002F", rb"\n"])
def test_escapes_far_into_a_payload(escaped: bytes) -> None:
    """A start of a payload is read wherever an escape is cut; what comes later is not looked at."""
    for filled in range(PEEK_CHARACTERS * 2 + 500, PEEK_CHARACTERS * 2 + 520):
        assert picture_with(OPEN_URL + b"A" * (filled - len(OPEN_URL)) + escaped * 5) == (KNOWN,)


def test_little_of_a_payload_is_unescaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many escapes there are, only the start is read."""
    sizes: list[int] = []
    real = msgspec.json.decode

    def noting(text: bytes, **options: Any) -> Any:
        sizes.append(len(memoryview(text)))
        return real(text, **options)

    monkeypatch.setattr(msgspec.json, "decode", noting)
    assert picture_with(OPEN_URL + rb"\u0041" * 200_000) == (KNOWN,)
    assert max(sizes) <= 2 * PEEK_CHARACTERS + 514


@pytest.mark.parametrize(
    ("end", "more"),
    [(b"A" * 40, 40), (rb"\/" * 40, 40), (rb"\u0041" * 40, 40), (rb"\\u0041" * 40, 280), (rb"\\/" * 40, 120)],
)
def test_a_recording_is_no_shorter_than_it_is(end: bytes, more: int) -> None:
    """Its length counts characters, and a backslash that stands for itself counts with all that follows it."""
    part = b'{"type":"input_audio","input_audio":{"data":"%s"}}' % (WAV.encode() + b"A" * 10_000 + end)
    found = apart({"messages": msgspec.Raw(b'[{"content":[%s]}]' % part)})[1]
    assert found == (MediaPart(kind=AUDIO, seconds=(len(WAV) + 10_000 + more) * 3 // 4 / 32_000),)


def test_a_payload_that_is_no_text() -> None:
    """It states nothing."""
    for payload in (rb"\n\xff".replace(b"\\xff", b"\xff"), b"\\q", PNG.encode() + rb"\\"):
        part = b'[{"content":[{"type":"image_url","image_url":{"url":"%s"}}]}]' % payload
        assert apart({"messages": msgspec.Raw(part)})[1] in ((UNKNOWN,), ())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": None},
        {"messages": "x"},
        {"messages": {"content": [{"type": "image_url"}]}},
        {"messages": [5, {"role": "user", "content": "x"}]},
        {"messages": [{"role": "assistant", "audio": {"id": "a"}, "image_url": "x"}]},
        {"messages": [{"role": "user", "content": {"type": "image_url", "image_url": {"url": "x"}}}]},
        {"messages": [{"role": "user", "content": "x", "output": [{"type": "image_url"}]}]},
        {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image_url"}]}]}]},
        {"tools": [{"content": [{"type": "image_url"}]}]},
    ],
)
def test_what_holds_no_parts(fields: Json) -> None:
    """Only the list in the content of a message does, for the engine too."""
    given = fields_of(fields)
    assert apart(given) == (given, ())
    assert apart(given)[0] is given


def test_so_many_parts() -> None:
    """One more than may be looked into is refused by name; texts are no such parts."""
    picture: Json = {"type": "image_url", "image_url": {"url": "https://x"}}
    text: Json = {"type": "text", "text": "x"}
    assert len(apart(chat(*[picture] * MAX_PARTS, *[text] * 100))[1]) == MAX_PARTS
    with pytest.raises(InvalidRequest, match="'messages' has more than 1024 parts that are not text") as caught:
        apart(chat(*[picture] * MAX_PARTS, text, picture))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (None, ()),
        ("x", ()),
        (
            [{"type": "image_url", "url": DATA_URL}, {"type": "audio_url", "url": "https://x"}],
            (KNOWN, MediaPart(kind=AUDIO)),
        ),
        ([{"type": "video_url"}, {"type": "other", "url": DATA_URL}, 5], (MediaPart(kind=VIDEO),)),
        ([{"type": "image_url", "url": "https://x", "image_url": DATA_URL}], (UNKNOWN,)),
        ([{"type": "image_url", "url": DATA_URL, "uuid": "u"}], (UNKNOWN,)),
    ],
)
def test_content_parts(parts: object, found: tuple[MediaPart, ...]) -> None:
    """Beside token ids a part is a type and a `url`, and nothing else."""
    assert of_content_parts(msgspec.Raw(json.dumps(parts).encode())) == found


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, Python's own and those in C."""
    calls = 0

    def note(_frame: object, event: str, _of: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("element", "most"), [(0, 3), ("x", 3), ([], 3), ({}, 4), ({"type": "zz"}, 11), ({"a": 1}, 8)])
def test_little_is_done_for_what_is_not_of_a_kind(element: object, most: int) -> None:
    """Short elements by the ten thousand cost a few calls each, beside a picture as without one."""
    fields = chat({"type": "image_url"}, *[element] * 1000)
    assert calls_of(lambda: apart(fields)) <= 1000 * most + 100


def test_everything_else_keeps_its_bytes() -> None:
    """Spacing, escapes and numbers of the client survive beside a replaced part."""
    text = b'{ "text" : "h\\u00e9", "type":"text", "n":1.50 }'
    body = (
        b'{"messages":[ {"role" :"user", "content":[%s , {"type":"image_url","image_url":"x"}]}, { "a":1E2 } ]}' % text
    )
    kept = bytes(apart(read_fields(body))[0]["messages"])
    assert text in kept
    assert b'{ "a":1E2 }' in kept


def test_a_large_picture() -> None:
    """A data URL of 2.5 million characters: none of it is left, and hardly any of it is looked at."""
    payload = b"A" * O18_CHARACTERS
    # Past what may be looked at the payload is not even base64.
    spoiled = payload[: PEEK_CHARACTERS + 300] + b"\xff" * (O18_CHARACTERS - PEEK_CHARACTERS - 300)
    for content in (payload, spoiled):
        body = (
            b'{"messages":[{"role":"user","content":[{"type":"text","text":"twelve words"},'
            b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}' % content
        )
        fields = read_fields(body)
        kept_fields, found = apart(fields)
        assert found == (MediaPart(kind=IMAGE),)
        kept = bytes(kept_fields["messages"])
        assert kept == (
            b'[{"role":"user","content":[{"type":"text","text":"twelve words"},{"type":"text","text":"[image]"}]}]'
        )


@pytest.mark.parametrize("value", [b"[1,", b"{", b'{"a":', b"[" * 100_000, b'[{"content":[}]', b'[{"\xff":1}]'])
def test_malformed_json(value: bytes) -> None:
    """It has no parts; whoever needs its value refuses it."""
    fields = {"messages": msgspec.Raw(value)}
    assert apart(fields) == (fields, ())


def test_a_type_that_is_not_utf_8() -> None:
    """It is no type, and the keys decide."""
    fields = {"messages": msgspec.Raw(b'[{"content":[{"type":"\xff"},{"type":"\xff","image_url":"http://x"}]}]')}
    assert apart(fields)[1] == (MediaPart(kind=IMAGE),)


@pytest.mark.parametrize(
    ("text", "left", "parts"),
    [
        ("no picture", "no picture", ()),
        ("a ![](http://x) b", "a  b", (MediaPart(kind=IMAGE),)),
        (
            f"![](data:image/png;base64,{PNG})![](data:image/png;base64,AAAA)",
            "",
            (
                MediaPart(kind=IMAGE, width=640, height=480),
                MediaPart(kind=IMAGE),
            ),
        ),
        ("![alt](http://x)", "![alt](http://x)", ()),
    ],
)
def test_pictures_in_a_tgi_text(text: str, left: str, parts: tuple[MediaPart, ...]) -> None:
    """Only without a title, as that server looks for them."""
    assert markdown_media(text) == (left, parts)


def test_pictures_that_never_end() -> None:
    """A text of a million beginnings is looked through once, and there are only so many pictures."""
    text = "![](" * 1_000_000
    assert markdown_media(text) == (text, ())
    assert markdown_media(f"a ![](http://x) {text}") == (f"a  {text}", (MediaPart(kind=IMAGE),))
    assert len(markdown_media("![]()" * MAX_PARTS)[1]) == MAX_PARTS
    with pytest.raises(InvalidRequest, match="'inputs' has more than 1024 parts") as caught:
        markdown_media("![]()" * (MAX_PARTS + 1))
    assert caught.value.param == "inputs"


@deterministic
@given(objects("messages", "input", "instances", "system", "content_parts", "tools"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold, nothing is raised, and a second look finds nothing more to take out."""
    kept, found = apart(fields)
    assert apart(kept) == (kept, ())
    assert (kept is fields) is (found == ())
    of_content_parts(fields.get("content_parts", msgspec.Raw(b"null")))
