import json

from kvguard.simulator.answers import Answer, ChatShape, CompletionShape, Head
from kvguard.simulator.engine import FinishReason, SequenceRequest, SimToken
from kvguard.simulator.wire import Call

HEAD = Head(answer_id="id-1", created=7, model="tiny")


def call_of(choices=1, *, include_usage=False, continuous_usage=False):
    return Call(
        sequences=tuple(SequenceRequest(prompt_tokens=5, max_tokens=9) for _ in range(choices)),
        prompt_tokens=5,
        stream=True,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
    )


def token(position, reason=None):
    return SimToken(sequence_id=0, position=position, finish_reason=reason)


def payloads(chunks):
    return [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]


def test_a_chat_chunk_is_vllms():
    """Role chunk, token chunk and last chunk have the recorded fields in the recorded order."""
    answer = Answer(ChatShape(), HEAD, call_of())
    role, first = payloads(answer.chunks(0, token(0)))
    (last,) = payloads(answer.chunks(0, token(1, FinishReason.LENGTH)))
    head = {"id": "id-1", "object": "chat.completion.chunk", "created": 7, "model": "tiny"}
    delta = {"role": "assistant", "content": ""}
    assert role == head | {
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
        "prompt_token_ids": None,
        "prompt_text": None,
    }
    choice = {"index": 0, "delta": {"content": " the"}, "logprobs": None, "finish_reason": None, "token_ids": None}
    assert first == head | {"choices": [choice]}
    assert list(first) == ["id", "object", "created", "model", "choices"]
    assert list(last["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"]
    assert last["choices"][0]["finish_reason"] == "length"
    assert "system_fingerprint" in last
    assert list(answer.closing()) == [b"data: [DONE]\n\n"]


def test_a_completion_has_no_role_chunk():
    """One chunk per token, nothing before."""
    answer = Answer(CompletionShape(), HEAD, call_of(2))
    (chunk,) = payloads(answer.chunks(1, token(0)))
    assert chunk["object"] == "text_completion"
    assert list(chunk["choices"][0]) == [
        *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
    ]


def test_the_fingerprint_sits_on_the_last_chunk_only():
    """With several choices it is the chunk that ends the last one, with usage it is the usage chunk."""
    answer = Answer(CompletionShape(), HEAD, call_of(2))
    (first,) = payloads(answer.chunks(1, token(0, FinishReason.LENGTH)))
    (last,) = payloads(answer.chunks(0, token(0, FinishReason.LENGTH)))
    assert ("system_fingerprint" in first, "system_fingerprint" in last) == (False, True)
    answer = Answer(CompletionShape(), HEAD, call_of(include_usage=True))
    (last,) = payloads(answer.chunks(0, token(0, FinishReason.LENGTH)))
    usage, done = answer.closing()
    assert "system_fingerprint" not in last
    assert json.loads(usage.removeprefix(b"data: "))["usage"] == {
        "prompt_tokens": 5,
        "total_tokens": 6,
        "completion_tokens": 1,
    }
    assert done == b"data: [DONE]\n\n"


def test_continuous_usage_runs_per_choice():
    """Every chunk counts the tokens of its own choice, the role chunks none."""
    answer = Answer(ChatShape(), HEAD, call_of(2, include_usage=True, continuous_usage=True))
    chunks = payloads([*answer.chunks(0, token(0)), *answer.chunks(0, token(1)), *answer.chunks(1, token(0))])
    counted = [(chunk["choices"][0]["index"], chunk["usage"]["completion_tokens"]) for chunk in chunks]
    assert counted == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]


def test_the_end_mark_counts_without_text():
    """A sequence that stops by itself has one token more than its text."""
    answer = Answer(ChatShape(), HEAD, call_of())
    answer.add(0, token(0))
    answer.add(0, token(1, FinishReason.STOP))
    whole = answer.whole()
    assert whole["choices"][0]["message"]["content"] == " the"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 2
