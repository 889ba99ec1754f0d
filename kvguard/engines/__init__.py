"""Exposition text of an engine -> `UsageSample`, one file per engine. Pure: no HTTP, no clock, no policy."""
