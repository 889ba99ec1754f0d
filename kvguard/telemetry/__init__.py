"""Metrics and logs: they receive events and read state, and decide nothing."""
