"""Prompt -> token count, off the event loop. Knows wire prompts, no policy."""
