"""Bytes to top-level fields and back, and numbers and booleans the way vLLM coerces them."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import (
    MAX_DIGITS,
    MAX_VALUES,
    Fields,
    decode,
    entries,
    is_filled,
    is_set,
    members,
    read_bool,
    read_fields,
    read_int,
    read_text,
    refuse_many_values,
    some_members,
    value_count,
    write_fields,
)
from tests.kit.properties import deterministic

DEEP = 100_000


def field(raw: str | bytes) -> Fields:
    return read_fields(b'{"a":' + (raw if isinstance(raw, bytes) else raw.encode()) + b"}")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"{}", {}),
        (b' { "a" : 1 , "b":[1, 2] } \n', {"a": b"1", "b": b"[1, 2]"}),
        (b'{"a":1,"a":2}', {"a": b"2"}),
        (b'{"a":1,"b":3,"a":2}', {"a": b"2", "b": b"3"}),
        (b'{"\\u0061":1,"a":2}', {"a": b"2"}),
        (b'{"a":1.50,"b":1E2,"c":-0}', {"a": b"1.50", "b": b"1E2", "c": b"-0"}),
        (b'{"a":1e400}', {"a": b"1e400"}),
        (b'{"a":%d}' % 10**40, {"a": b"1" + b"0" * 40}),
        ('{"a":"\u00e9\\u00e9"}'.encode(), {"a": '"\u00e9\\u00e9"'.encode()}),
        # Not even valid text: nothing kvguard reads, so for the engine to judge.
        (b'{"a":"\xff"}', {"a": b'"\xff"'}),
    ],
)
def test_the_top_level_of_an_object(body: bytes, fields: dict[str, bytes]) -> None:
    """Values stay the client's own bytes, unread; the last of equal keys wins, however they are spelled."""
    assert {name: bytes(raw) for name, raw in read_fields(body).items()} == fields


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"a"',
        b"1",
        b'{"a":1',
        b'{"a":1}x',
        b'{"a":1}{}',
        b'{"a":1,}',
        b"{'a':1}",
        b"{a:1}",
        b'{"a":01}',
        b'{"a":nul}',
        b'{"a":"\n"}',
        b'{"\xff":1}',
        # Python's parser, and so vLLM, takes these; kvguard does not.
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-32"),
        b'{"a":"\\ud800"}',
        b'{"a":"\\udc00\\ud800"}',
        b'{"\\ud800":1}',
        # Deeper than any parser follows.
        pytest.param(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}", id="deep value"),
        pytest.param(b'{"a":' * DEEP + b"1" + b"}" * DEEP, id="deep object"),
        pytest.param(b"[" * DEEP, id="deep list"),
    ],
)
def test_what_is_no_object_in_utf8(body: bytes) -> None:
    """One clear refusal, without a traceback into the parser and without a field to blame."""
    with pytest.raises(InvalidRequest, match="one JSON object in UTF-8") as caught:
        read_fields(body)
    assert caught.value.param is None
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_writing_keeps_order_and_bytes() -> None:
    """Only space between fields goes; values are written as they came."""
    assert write_fields(read_fields(b'{ "b" : [1,  2.50], "a" : "\\u00e9" }')) == b'{"b":[1,  2.50],"a":"\\u00e9"}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@deterministic
@given(body=st.dictionaries(st.text(max_size=8), json_values, max_size=6))
def test_any_object_survives(body: dict[str, object]) -> None:
    """Reading and writing any JSON object changes nothing a JSON parser can see."""
    written = write_fields(read_fields(json.dumps(body, ensure_ascii=False).encode()))
    assert json.loads(written) == body
    assert list(json.loads(written)) == list(body)
    assert write_fields(read_fields(written)) == written


@deterministic
@given(body=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    """Nothing but InvalidRequest comes out of a broken body."""
    try:
        fields = read_fields(body)
    except InvalidRequest:
        return
    assert all(isinstance(raw, msgspec.Raw) for raw in fields.values())


INTEGERS = [
    ("5", 5),
    ('"5"', 5),
    ("5.0", 5),
    ('"5.0"', 5),
    ('"5.000"', 5),
    ('" 5 "', 5),
    ('"\\t5\\n"', 5),
    ('"+5"', 5),
    ('"-5"', -5),
    ("-5", -5),
    ("-0.0", 0),
    ('"05"', 5),
    ('"1_000"', 1000),
    ("5e0", 5),
    ("1e3", 1000),
    ("true", 1),
    ("false", 0),
    ("0", 0),
    ("null", None),
    (str(2**53 - 1), 2**53 - 1),
    (str(1 - 2**53), 1 - 2**53),
    (f'"{2**53 - 1}"', 2**53 - 1),
    pytest.param('"' + "0" * 6000 + '5"', 5, id="long zeros"),
]
NOT_INTEGERS = [
    "5.5",
    '"5.5"',
    '"5."',
    '".5"',
    '""',
    '" "',
    '"x"',
    '"5x"',
    '"true"',
    '"1e3"',
    '"0x10"',
    '"5 5"',
    '"_5"',
    '"5_"',
    '"1__0"',
    '"+-5"',
    '"nan"',
    '"inf"',
    # Digits of other scripts.
    '"\u0663"',
    '"\uff15"',
    "[5]",
    "{}",
    str(2**53),
    str(-(2**53)),
    f'"{2**53}"',
    str(10**40),
    f'"{10**40}"',
    pytest.param('"' + "9" * 6000 + '"', id="long nines"),
    "1e300",
    "5.0000000001",
]


@pytest.mark.parametrize(("raw", "value"), INTEGERS)
def test_integers(raw: str, value: int | None) -> None:
    """Whole numbers in any spelling vLLM takes; null is absent."""
    assert read_int(field(raw), "a") == value
    assert type(read_int(field(raw), "a")) is type(value)


@pytest.mark.parametrize("raw", NOT_INTEGERS)
def test_what_is_no_integer(raw: str) -> None:
    """Fractions, words, lists, and what no engine could count to name the field at fault."""
    with pytest.raises(InvalidRequest, match="'a' must be an integer") as caught:
        read_int(field(raw), "a")
    assert caught.value.param == "a"


@pytest.mark.parametrize("raw", ["1e400", "-1e400", pytest.param("9" * 5000, id="long"), b'"\xff"'])
def test_a_value_no_parser_can_hold(raw: str | bytes) -> None:
    """It passes unread, and is refused by name once it is read."""
    fields = field(raw)
    for read in (decode, read_int, read_bool):
        with pytest.raises(InvalidRequest, match="'a' is not valid JSON") as caught:
            read(fields, "a")
        assert caught.value.param == "a"


def test_a_value_too_deep_to_decode() -> None:
    """Nesting that the top level was not asked to follow ends in a refusal too."""
    fields = {"a": msgspec.Raw(b"[" * 10_000 + b"]" * 10_000)}
    with pytest.raises(InvalidRequest, match="'a' is not valid JSON"):
        decode(fields, "a")


TRUE = ["true", '"true"', '"TRUE"', '"True"', "1", "1.0", '"1"', '"on"', '"yes"', '"y"', '"t"', '"T"']
FALSE = ["false", '"false"', '"FALSE"', "0", "0.0", "-0.0", '"0"', '"off"', '"no"', '"n"', '"f"', "null"]
NOT_BOOLEANS = ["2", "-1", "0.5", "1e300", '""', '" true"', '"1.0"', '"x"', '"null"', "[]", "[true]", "{}"]


@pytest.mark.parametrize(("raw", "value"), [(raw, True) for raw in TRUE] + [(raw, False) for raw in FALSE])
def test_booleans(raw: str, value: bool) -> None:
    """Truth in any spelling vLLM takes; null is false."""
    assert read_bool(field(raw), "a") is value


@pytest.mark.parametrize("raw", NOT_BOOLEANS)
def test_what_is_no_boolean(raw: str) -> None:
    """Any other value names the field at fault."""
    with pytest.raises(InvalidRequest, match="'a' must be true or false") as caught:
        read_bool(field(raw), "a")
    assert caught.value.param == "a"


def test_absent_fields() -> None:
    """A field that is not there is None, false, not set, not filled."""
    assert decode({}, "a") is None
    assert read_int({}, "a") is None
    assert read_bool({}, "a") is False
    assert not is_set({}, "a")
    assert not is_filled({}, "a")


@pytest.mark.parametrize(
    ("raw", "is_there", "has_content"),
    [
        ("null", False, False),
        ("false", True, True),
        ("[]", True, False),
        ("[ \n ]", True, False),
        ("{}", True, False),
        ("[null]", True, True),
        ('{"a":1}', True, True),
        ('""', True, False),
        ('"x"', True, True),
    ],
)
def test_set_and_filled(raw: str, is_there: bool, has_content: bool) -> None:
    """Null is not set; an empty list or object is set and not filled."""
    assert is_set(field(raw), "a") is is_there
    assert is_filled(field(raw), "a") is has_content


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (b"5", 1),
        (b'"[[,,"', 1),
        (b"[]", 1),
        (b"[1,2]", 2),
        (b'{"a":{"b":[1,2]}}', 4),
        (b'["[,"]', 3),
        (b"[" + b"0," * (MAX_VALUES - 2) + b"0]", MAX_VALUES - 1),
        (b"[" + b"0," * MAX_VALUES + b"0]", MAX_VALUES + 1),
        (b'["' + b",[{" * MAX_VALUES + b'", 1]', 2),
        (b'["' + b"," * MAX_VALUES + b'\\\\",[],"\\",[]"]', 4),
        (b'["",' * MAX_VALUES + b'""' + b"]" * MAX_VALUES, 2 * MAX_VALUES),
        (b"[" + b'"",' * (3 * MAX_VALUES) + b"1]", MAX_VALUES + 1),
    ],
)
def test_how_many_values_there_are(raw: bytes, count: int) -> None:
    """Brackets and commas, those inside the strings of a large value left out."""
    assert min(value_count(msgspec.Raw(raw)), MAX_VALUES + 1) == min(count, MAX_VALUES + 1)


def test_more_values_than_are_built() -> None:
    """One more than the limit is refused by the name of the field, before anything is built."""
    most = b'{"b":[' + b"0," * (MAX_VALUES - 2) + b"0]}"
    decode({"a": msgspec.Raw(most)}, "a")
    with pytest.raises(InvalidRequest, match="'a' has more than 65536 lists, objects and entries") as caught:
        decode({"a": msgspec.Raw(most.replace(b"[", b"[0,"))}, "a")
    assert caught.value.param == "a"
    assert refuse_many_values(msgspec.Raw(b"[1,2]"), "a", besides=3) == 5
    with pytest.raises(InvalidRequest, match="'a' has more than"):
        refuse_many_values(msgspec.Raw(b"[1,2]"), "a", besides=MAX_VALUES - 1)


def test_more_fields_than_a_body_has() -> None:
    """Each is built, so their number is bounded; what a large field holds is no matter."""
    body = b'{"z":0' + b"".join(b',"%x":0' % number for number in range(MAX_VALUES - 1)) + b"%s}"
    assert len(read_fields(body % b"")) == MAX_VALUES
    with pytest.raises(InvalidRequest, match="the body has more than 65536 fields"):
        read_fields(body % b',"b":0')
    read_fields(b'{"prompt":"%s","b":0,"c":"::"}' % (b":" * MAX_VALUES))
    with pytest.raises(InvalidRequest, match="one JSON object"):
        read_fields(b'{"prompt":"%s"' % (b":" * 2 * MAX_VALUES))


@pytest.mark.parametrize(
    ("raw", "is_read"),
    [
        (b"[%s]" % (b"9" * MAX_DIGITS), True),
        (b"[1, %s0]" % (b"9" * MAX_DIGITS), False),
        (b'["x", {"a": -%s0}]' % (b"9" * MAX_DIGITS), False),
        (b"[0.%s1]" % (b"0" * MAX_DIGITS), False),
        (b'["%s"]' % (b"7" * 2 * MAX_DIGITS), True),
        (b'["\\"%s", "\\\\", 5]' % (b"7" * 2 * MAX_DIGITS), True),
        (b'["%s\\\\", %s]' % (b"7" * 2 * MAX_DIGITS, b"7" * 2 * MAX_DIGITS), False),
    ],
)
def test_a_number_longer_than_any(raw: bytes, is_read: bool) -> None:
    """It is refused before it is read, which takes time that grows with the square of its length; texts may be long."""
    with contextlib.nullcontext() if is_read else pytest.raises(InvalidRequest, match="more than 255 digits"):
        decode({"a": msgspec.Raw(raw)}, "a")


def test_some_members_of_an_object() -> None:
    """Those asked for, unread; what is no object is refused by name."""

    class Named(msgspec.Struct):
        b: msgspec.Raw = msgspec.Raw(b"null")

    decoder = msgspec.json.Decoder(Named)
    found = [bytes(some_members(field(raw), "a", decoder).b) for raw in ("{}", '{"c":[[]],"b": [1]}')]
    assert found == [b"null", b"[1]"]
    with pytest.raises(InvalidRequest, match="'a' must be an object") as caught:
        some_members(field("[]"), "a", decoder)
    assert caught.value.param == "a"


def test_a_list_unread() -> None:
    """Its entries are the client's bytes; nothing else has any."""
    assert [bytes(one) for one in entries(msgspec.Raw(b'[1, {"a":\xff}]'.replace(b"\xff", b"1")), "a")] == [
        b"1",
        b'{"a":1}',
    ]
    assert entries(msgspec.Raw(b"{}"), "a") == []
    with pytest.raises(InvalidRequest, match="'a' is not valid JSON"):
        entries(msgspec.Raw(b"[1,]"), "a")


def test_an_object_unread() -> None:
    """Its members are the client's bytes; nothing else has any, and a key that is not UTF-8 is refused by name."""
    assert {name: bytes(one) for name, one in members(msgspec.Raw(b'{"b": [1]}'), "a").items()} == {"b": b"[1]"}
    assert members(msgspec.Raw(b"[1]"), "a") == {}
    with pytest.raises(InvalidRequest, match="'a' is not valid JSON") as caught:
        members(msgspec.Raw(b'{"\xff": 1}'), "a")
    assert caught.value.param == "a"


@pytest.mark.parametrize(
    "inner", ["[" + "[]," * 100_000 + "[]]", '{"a":[' + "1," * 100_000 + "1]}", '"' + "1_" * 9_000 + '1"']
)
def test_what_cannot_be_a_scalar_is_not_read(inner: str) -> None:
    """A list, an object and a text longer than any number are refused without a look into them."""
    with pytest.raises(InvalidRequest, match="must be an integer"):
        read_int(field(inner), "a")
    with pytest.raises(InvalidRequest, match="must be true or false"):
        read_bool(field(inner), "a")
    assert read_text(field(inner), "a") is None


def test_a_short_text() -> None:
    """A name, or nothing for what is none."""
    assert [read_text(field(raw), "a") for raw in ('"x"', "5", "null", "[]")] == ["x", None, None, None]


def test_values_are_decoded_once_asked_for() -> None:
    """Any JSON value comes out as Python has it."""
    assert decode(field('{"b":[1,2.5,"x",null,true]}'), "a") == {"b": [1, 2.5, "x", None, True]}
