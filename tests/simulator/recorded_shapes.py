"""What a recording and an answer of the TGI twin must have in common: keys in their order, types and framing."""

import json

NULLABLE = ("seed", "model_sha", "sha", "docker_label", "model_pipeline_tag")


def shape_of(value):
    """Keys with the shapes of their values; of a list the shapes that occur in it."""
    if isinstance(value, dict):
        return [(key, "nullable" if key in NULLABLE else shape_of(part)) for key, part in value.items()]
    if isinstance(value, list):
        return ["list", *sorted({repr(shape_of(part)) for part in value})]
    return type(value).__name__


def frames_of(raw):
    """Of each block of an event stream what precedes the JSON, and its shape."""
    text = raw.decode()
    assert text.endswith("\n\n")
    return [_frame(block) for block in text[:-2].split("\n\n")]


def _frame(block):
    start = block.find("{")
    return block if start < 0 else (block[:start], shape_of(json.loads(block[start:])))


def violations(value, schema, schemas, where="$"):
    """Where a value breaks a schema of an OpenAPI document: keys that are required, types and enumerations."""
    if "$ref" in schema:
        return violations(value, schemas[schema["$ref"].rsplit("/", 1)[1]], schemas, where)
    if value is None and schema.get("nullable"):
        return []
    for part in schema.get("allOf", ()):
        if found := violations(value, part, schemas, where):
            return found
    for kind in ("oneOf", "anyOf"):
        if kind in schema and all(violations(value, part, schemas, where) for part in schema[kind]):
            return [f"{where}: none of {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r}"]
    return _of_type(value, schema, schemas, where)


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def _of_type(value, schema, schemas, where):
    if "type" in schema and not isinstance(value, TYPES[schema["type"]]):
        return [f"{where}: {value!r} is no {schema['type']}"]
    if schema.get("type") == "array":
        found = [violations(part, schema["items"], schemas, f"{where}[{n}]") for n, part in enumerate(value)]
        return [each for one in found for each in one]
    found = [f"{where}.{key}: missing" for key in schema.get("required", ()) if key not in value]
    for key, part in schema.get("properties", {}).items():
        if key in value:
            found += violations(value[key], part, schemas, f"{where}.{key}")
    return found
