import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.simulator.text import (
    ASSISTANT,
    END_OF_MESSAGE,
    ROLES,
    TOOLS,
    VOCABULARY_SIZE,
    ChatMessage,
    chat_token_ids,
    output_word,
    pieces,
    token_ids,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a", ["a"]),
        ("abcd", ["abcd"]),
        ("abcde", ["abcd", "e"]),
        ("hello, world", ["hell", "o", ",", " worl", "d"]),
        ("  x", ["  ", "x"]),
        ("a\n", ["a", "\n"]),
        ("naïve 日本語です", ["naïv", "e", " 日本語で", "す"]),
        ("🙂🙂🙂🙂🙂", ["🙂🙂🙂🙂", "🙂"]),
    ],
)
def test_pieces_are_at_most_four_characters(text, expected):
    """Words and marks are cut at four characters and a word takes the blank before it along."""
    assert pieces(text) == expected


@given(st.text())
def test_pieces_lose_nothing(text):
    """The pieces of any text joined are the text, and every piece has an id in the vocabulary."""
    assert "".join(pieces(text)) == text
    assert all(0 <= token < VOCABULARY_SIZE for token in token_ids(text))


def test_ids_are_stable():
    """Ids do not depend on the process, so recorded prompts stay comparable."""
    assert token_ids("the page") == token_ids("the page")
    assert token_ids("the the") != token_ids("the page")
    assert token_ids("full") == [6080]


def test_a_lone_surrogate_has_an_id():
    """Text that cannot be encoded still counts."""
    assert len(token_ids("\ud800")) == 1


@pytest.mark.parametrize("choice", [0, 1, 5])
def test_an_answer_reads_back_as_many_tokens(choice):
    """Every output word is one token, also next to its neighbours."""
    text = "".join(output_word(position, choice) for position in range(500))
    assert len(token_ids(text)) == 500


def test_choices_differ():
    """Two choices of one request do not read alike."""
    assert [output_word(k, 0) for k in range(5)] != [output_word(k, 1) for k in range(5)]


def test_the_template_adds_two_tokens_a_message_and_one_opening():
    """Role, content and end mark per message, then the assistant's opening."""
    messages = [ChatMessage(role="user", content="abcd"), ChatMessage(role="robot", content="")]
    ids = chat_token_ids(messages)
    assert ids[0] == ROLES["user"]
    assert ids[-1] == ASSISTANT
    assert ids.count(END_OF_MESSAGE) == 2
    assert len(ids) == 3 + 2 + 1
    assert chat_token_ids(messages, add_generation_prompt=False) == ids[:-1]


def test_tools_and_tool_calls_are_part_of_the_prompt():
    """Tool definitions and tool calls cost tokens."""
    plain = chat_token_ids([ChatMessage(role="user", content="x")])
    with_tools = chat_token_ids([ChatMessage(role="user", content="x")], [{"type": "function"}])
    with_call = chat_token_ids([ChatMessage(role="user", content="x", extra='[{"id":1}]')])
    assert with_tools[0] == TOOLS
    assert with_tools[-len(plain) :] == plain
    assert len(with_call) > len(plain)
