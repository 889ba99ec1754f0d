"""A deterministic twin of a paged-KV engine with vLLM's HTTP face, for `sim://` backends and for tests.

`blocks` and `engine` are pure: no clock, no I/O, no asyncio. `driver` gives the engine time, `wire`, `answers` and
`exposition` speak vLLM, `app` joins them. Nothing here knows the proxy.
"""
