"""The request path: pipeline, controller, relay, upstream. It knows no environment and no files."""
