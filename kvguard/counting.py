"""Who counts the prompts of which model: puts the counters together as the settings say."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvguard.engines.kind import EngineKind
from kvguard.errors import SettingsError
from kvguard.token_sections import CounterChoice, TokenSettings
from kvguard.tokenization.counter import ExactCounter, PromptCounter
from kvguard.tokenization.engine import EngineCounter, Post
from kvguard.tokenization.learned import LearnedPolicy, LearnedRatios
from kvguard.tokenization.local import LocalCounter, load_local_counter
from kvguard.tokenization.media import MediaAllowance
from kvguard.tokenization.tgi import TgiCounter

_OWN: Final = (CounterChoice.AUTO, CounterChoice.LOCAL)
_ASKED: Final = (CounterChoice.AUTO, CounterChoice.ENGINE)

# Every name the backends list, and the model it belongs to: an adapter its parent, a base model itself.
Parents = Callable[[], Mapping[str, str]]


def build_counter(
    chosen: TokenSettings,
    post: Post | None,
    parents: Parents,
    stack: contextlib.ExitStack,
    kind: EngineKind = EngineKind.VLLM,
) -> PromptCounter:
    """The counter of every prompt; `post` asks an engine of this kind, None means that none can be asked.

    Raises SettingsError.
    """
    default, by_model = _local_counters(chosen, stack)
    asked: tuple[ExactCounter, ...] = ()
    if post is not None and chosen.counter in _ASKED:
        asking = EngineCounter if kind is EngineKind.VLLM else TgiCounter
        engine = asking(post, timeout_seconds=chosen.engine_timeout_seconds)
        asked = (ExactCounter(counter=engine, prompt_limit_bytes=chosen.engine_max_bytes),)

    def exact(names: Sequence[str]) -> Sequence[ExactCounter]:
        local = next((by_model[name] for name in names if name in by_model), default)
        own = () if local is None else (ExactCounter(counter=local, prompt_limit_bytes=chosen.exact_max_bytes),)
        return (*own, *asked)

    def names_of(model: str) -> Sequence[str]:
        return lineage(model, chosen.aliases, parents())

    learned = LearnedRatios(LearnedPolicy(bytes_per_token=chosen.bytes_per_token))
    return PromptCounter(exact, learned, names_of, MediaAllowance([each.setting() for each in chosen.media]))


def lineage(model: str, aliases: Mapping[str, str], parents: Mapping[str, str]) -> tuple[str, ...]:
    """The name in a request and those it stands for, ending with the base model; aliases lead on to aliases.

    No name at all stands for the only model there is, under however many names.
    """
    names = [model]
    while (further := aliases.get(names[-1], parents.get(names[-1]))) is not None and further not in names:
        names.append(further)
    if model or len(names) > 1:
        return tuple(names)
    lines = {lineage(name, aliases, parents)[-1] for name in parents.values() if name}
    return (model, *lines) if len(lines) == 1 else (model,)


def _local_counters(
    chosen: TokenSettings, stack: contextlib.ExitStack
) -> tuple[LocalCounter | None, dict[str, LocalCounter]]:
    """The tokenizer for every model and those of single ones, each file read once."""
    if chosen.counter not in _OWN:
        return None, {}
    directories = {f"tokens.tokenizers.{model}": path for model, path in chosen.tokenizers.items()}
    if chosen.tokenizer is not None:
        directories["tokens.tokenizer"] = chosen.tokenizer
    elif chosen.counter is CounterChoice.LOCAL and not directories:
        raise SettingsError(["tokens.counter: local needs tokens.tokenizer"])
    loaded = _loaded(directories, stack)
    by_model = {model: loaded[path] for model, path in chosen.tokenizers.items()}
    return None if chosen.tokenizer is None else loaded[chosen.tokenizer], by_model


def _loaded(directories: Mapping[str, Path], stack: contextlib.ExitStack) -> dict[Path, LocalCounter]:
    """A counter for each directory. Raises SettingsError with every setting that names one that cannot be read."""
    loaded: dict[Path, LocalCounter] = {}
    faults: list[str] = []
    for setting, path in directories.items():
        if path in loaded:
            continue
        try:
            loaded[path] = load_local_counter(path)
            stack.callback(loaded[path].close)
        except SettingsError as error:
            faults += [fault.replace("tokens.tokenizer", setting, 1) for fault in error.faults]
    if faults:
        raise SettingsError(faults)
    return loaded
