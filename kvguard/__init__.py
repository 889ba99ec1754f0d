"""Admission control and graceful degradation for LLM servers, driven by the KV cache."""

__version__ = "0.1.0"
