"""The calculator behind `kvguard estimate`: a model's `config.json` -> KV bytes, blocks, requests that fit."""
