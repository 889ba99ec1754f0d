"""Parts that are not text, and requests without their payloads."""

import base64
import json

import msgspec
import pytest
from hypothesis import given

from kvguard.protocols.fields import Fields, read_fields
from kvguard.protocols.media import MediaKind, MediaPart, _payload, markdown_media, media_parts, without_payloads
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


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x/a.png"}}, MediaPart(kind=IMAGE)),
        (
            {"type": "image_url", "image_url": {"url": "https://x", "detail": "low"}},
            MediaPart(kind=IMAGE, detail="low"),
        ),
        (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            MediaPart(kind=IMAGE, width=640, height=480, payload_bytes=len(PNG)),
        ),
        (
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "high"},
            MediaPart(kind=IMAGE, width=640, height=480, detail="high", payload_bytes=len(PNG)),
        ),
        ({"type": "input_image", "file_id": "f", "detail": 5}, MediaPart(kind=IMAGE)),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            MediaPart(kind=IMAGE, payload_bytes=4),
        ),
        ({"type": "image_url", "image_url": None, "uuid": "u"}, MediaPart(kind=IMAGE)),
        ({"image_url": "http://x"}, MediaPart(kind=IMAGE)),
        ({"image_url": "http://x", "role": "user"}, MediaPart(kind=IMAGE)),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, MediaPart(kind=IMAGE, payload_bytes=4)),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            MediaPart(kind=IMAGE, width=640, height=480, payload_bytes=len(PNG)),
        ),
        ({"type": "image", "source": {"type": "url", "url": "http://x"}}, MediaPart(kind=IMAGE)),
        (
            {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
            MediaPart(kind=AUDIO, seconds=(len(WAV) * 3 // 4) / 32_000, payload_bytes=len(WAV)),
        ),
        (
            {"type": "audio_url", "audio_url": {"url": "data:audio/mp3;base64,AAAA"}},
            MediaPart(kind=AUDIO, payload_bytes=4),
        ),
        ({"type": "video_url", "video_url": {"url": "file:///x"}}, MediaPart(kind=VIDEO)),
        ({"type": "input_file", "file_data": "AAAAAAAA"}, MediaPart(kind=FILE, payload_bytes=8)),
        ({"type": "file", "file": {"file_data": "AAAA", "filename": "f"}}, MediaPart(kind=FILE, payload_bytes=4)),
        ({"type": "document", "source": {"data": "AAAA"}}, MediaPart(kind=FILE, payload_bytes=4)),
        ({"type": "prompt_embeds", "data": "AAAA"}, MediaPart(kind=FILE, payload_bytes=4)),
        ({"type": "other", "video_url": "http://x"}, MediaPart(kind=VIDEO)),
        ({"type": "text", "text": "x", "image_url": "http://x", "uuid": "u"}, MediaPart(kind=IMAGE)),
        ({"type": "input_audio", "image_url": "http://x", "uuid": "u"}, MediaPart(kind=IMAGE)),
    ],
)
def test_parts(part: Json, found: MediaPart) -> None:
    """Kind by type or key, size and length by what the payload states; a part that is fetched states nothing."""
    fields = chat({"type": "text", "text": "before"}, part)
    assert media_parts(fields) == (found,)
    kept = without_payloads(fields)
    assert media_parts(kept) == ()
    assert json.loads(bytes(kept["messages"]))[0]["content"] == [
        {"type": "text", "text": "before"},
        {"type": "text", "text": f"[{found.kind.value}]"},
    ]


@pytest.mark.parametrize(
    "part",
    [
        "data:image/png;base64,AAAA",
        {"type": "text", "text": "data:image/png;base64,AAAA"},
        {"type": "text", "text": "x", "image_url": "http://x"},
        {"type": "thinking", "thinking": "x"},
        {"type": "tool_use", "input": {"content": {"type": "other"}}},
        {"type": "other"},
        {"type": "x" * 300},
        {},
        5,
        None,
    ],
)
def test_text(part: object) -> None:
    """A data URL inside a text is text, for the engine too; the fields are the same object."""
    fields = chat(part)
    assert media_parts(fields) == ()
    assert without_payloads(fields) is fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": None},
        {"messages": "x"},
        {"messages": [5, {"role": "user", "content": "x"}]},
        {"messages": [{"role": "assistant", "audio": {"id": "a"}, "image_url": "x"}]},
        {"input": "data:image/png;base64,AAAA"},
    ],
)
def test_what_holds_no_parts(fields: Json) -> None:
    """A message is not a part, and a text is not a list of parts."""
    given = fields_of(fields)
    assert media_parts(given) == ()
    assert without_payloads(given) is given


PICTURE: Json = {"type": "image", "source": {"data": "AAAA"}}
MARKER: Json = {"type": "text", "text": "[image]"}


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (
            {"messages": [{"content": [{"type": "tool_result", "content": [PICTURE], "a": 1}]}]},
            {"messages": [{"content": [{"type": "tool_result", "content": [MARKER], "a": 1}]}]},
        ),
        ({"system": [{"content": [PICTURE]}]}, {"system": [{"content": [MARKER]}]}),
        (
            {"input": [{"type": "function_call_output", "output": [PICTURE]}, {"role": "user", "content": "x"}]},
            {"input": [{"type": "function_call_output", "output": [MARKER]}, {"role": "user", "content": "x"}]},
        ),
        (
            {"instances": [{"messages": [{"content": [PICTURE]}]}]},
            {"instances": [{"messages": [{"content": [MARKER]}]}]},
        ),
        ({"content_parts": [{"type": "image_url", "url": "http://x"}]}, {"content_parts": [MARKER]}),
        (
            {"messages": [{"content": PICTURE}], "tools": [PICTURE]},
            {"messages": [{"content": MARKER}], "tools": [PICTURE]},
        ),
    ],
)
def test_where_parts_are(fields: Json, kept: Json) -> None:
    """In the messages, items, results of tools and instances of every form; nowhere else."""
    given = fields_of(fields)
    assert len(media_parts(given)) == 1
    assert {name: json.loads(bytes(value)) for name, value in without_payloads(given).items()} == kept


def test_everything_else_keeps_its_bytes() -> None:
    """Spacing, escapes and numbers of the client survive beside a replaced part."""
    text = b'{ "text" : "h\\u00e9", "type":"text", "n":1.50 }'
    body = (
        b'{"messages":[ {"role" :"user", "content":[%s , {"type":"image_url","image_url":"x"}]}, { "a":1E2 } ]}' % text
    )
    kept = bytes(without_payloads(read_fields(body))["messages"])
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
        assert media_parts(fields) == (MediaPart(kind=IMAGE, payload_bytes=O18_CHARACTERS),)
        kept = bytes(without_payloads(fields)["messages"])
        assert kept == (
            b'[{"role":"user","content":[{"type":"text","text":"twelve words"},{"type":"text","text":"[image]"}]}]'
        )


@pytest.mark.parametrize("value", [b"[1,", b"{", b'{"a":', b"[" * 100_000, b'[{"content":[}]'])
def test_malformed_json(value: bytes) -> None:
    """It has no parts; whoever needs its value refuses it."""
    fields = {"messages": msgspec.Raw(value)}
    assert media_parts(fields) == ()
    assert without_payloads(fields) is fields


def test_a_type_that_is_not_utf_8() -> None:
    """It is no type, and the keys decide."""
    fields = {"messages": msgspec.Raw(b'[{"content":[{"type":"\xff"},{"type":"\xff","image_url":"http://x"}]}]')}
    assert media_parts(fields) == (MediaPart(kind=IMAGE),)


def test_nesting_ends_somewhere() -> None:
    """A part so deep that no reader takes it there is not looked for."""
    value: object = PICTURE
    for _ in range(20):
        value = {"content": [value]}
    fields = fields_of({"messages": [value]})
    assert media_parts(fields) == ()
    assert without_payloads(fields) is fields


@pytest.mark.parametrize(
    ("text", "left", "parts"),
    [
        ("no picture", "no picture", ()),
        ("a ![](http://x) b", "a  b", (MediaPart(kind=IMAGE),)),
        (
            f"![](data:image/png;base64,{PNG})![](data:image/png;base64,AAAA)",
            "",
            (
                MediaPart(kind=IMAGE, width=640, height=480, payload_bytes=len(PNG)),
                MediaPart(kind=IMAGE, payload_bytes=4),
            ),
        ),
        ("![alt](http://x)", "![alt](http://x)", ()),
    ],
)
def test_pictures_in_a_tgi_text(text: str, left: str, parts: tuple[MediaPart, ...]) -> None:
    """Only without a title, as that server looks for them."""
    assert markdown_media(text) == (left, parts)


@deterministic
@given(objects("messages", "input", "instances", "system", "content_parts", "tools"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold, nothing is raised, and a second look finds nothing more to take out."""
    kept = without_payloads(fields)
    assert media_parts(kept) == ()
    assert without_payloads(kept) is kept
    assert (kept is fields) is (media_parts(fields) == ())


def test_a_part_is_looked_into_only_where_it_has_something() -> None:
    """The work for a part does not grow with the names a payload may have."""
    calls = 0

    class Counting(dict):
        def __getitem__(self, name: str) -> msgspec.Raw:
            nonlocal calls
            calls += 1
            return super().__getitem__(name)

    part = Counting({"type": msgspec.Raw(b'"image"'), "image": msgspec.Raw(b'{"url": "http://x/y.png"}')})
    assert bytes(_payload(part, 2)) == b"http://x/y.png"
    assert calls == 1
