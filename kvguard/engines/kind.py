"""The engines kvguard stands in front of."""

import enum


class EngineKind(enum.Enum):
    """What a backend speaks: its routes, its metrics and how it reserves blocks."""

    VLLM = "vllm"
    TGI = "tgi"
