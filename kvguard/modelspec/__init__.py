"""A model's `config.json` -> `KVCacheSpec`: bytes of KV per layer. Pure; knows no engine, no file and no HTTP."""
