"""Where settings come from: file, environment and flags, and every fault of theirs at once."""

import os
import re
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsError as BrokenVariable

from kvguard.errors import SettingsError
from kvguard.settings import PREFIX, Settings

DEFAULT_FILE: Final = Path("kvguard.yaml")

# Kubernetes puts these into every pod beside a Service named kvguard...; they are nobody's settings.
_SERVICE_LINK = re.compile(r"KVGUARD(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP)(_.*)?)")
_SERVICE_URL = re.compile(r"(tcp|udp)://.*")


def load_settings(*, config: Path | None = None, flags: dict[str, Any] | None = None) -> Settings:
    """Read every source. Raises SettingsError listing every fault."""
    faults = _unknown_variables()
    file = DEFAULT_FILE if config is None else config
    if config is not None and not config.is_file():
        raise SettingsError([*faults, f"no such file: {config}"])
    _check_mapping(file)
    bound = type("Settings", (Settings,), {"model_config": {**Settings.model_config, "yaml_file": file}})
    try:
        settings: Settings = bound(**(flags or {}))
    except BrokenVariable as error:
        faults.append(f"{error}: must be JSON")
    except ValidationError as error:
        faults += [_fault(detail) for detail in error.errors(include_input=False, include_url=False)]
    if faults:
        raise SettingsError(faults)
    return settings


def _check_mapping(file: Path) -> None:
    try:
        content = yaml.safe_load(file.read_bytes()) if file.is_file() else None
    except yaml.MarkedYAMLError as error:
        # Not the error's own text, which quotes the file.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SettingsError([f"{file}: line {line}: {error.problem or error.context}"]) from error
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"{file}: {error}"]) from error
    if not isinstance(content, dict | None):
        raise SettingsError([f"{file}: must be a mapping of settings, not a {type(content).__name__}"])


def _fault(detail: Any) -> str:
    where = ".".join(str(part) for part in detail["loc"]) or "settings"
    return f"{where}: {detail['msg'].removeprefix('Value error, ')}"


def _unknown_variables() -> list[str]:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    names = sorted(
        name
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and not _SERVICE_LINK.fullmatch(name) and not _SERVICE_URL.fullmatch(value)
    )
    return [f"{name}: no such setting" for name in names if name.upper().split("__")[0] not in known]


def worker_faults(workers: int | None) -> list[str]:
    """Why this many worker processes cannot be run: each would have a ledger of its own."""
    named = [("--workers", workers), ("WEB_CONCURRENCY", os.environ.get("WEB_CONCURRENCY"))]
    return [
        f"{source}={value}: kvguard runs one process, because every process would have a ledger of its own and admit "
        "as if it were alone; scale with replicas instead"
        for source, value in named
        if value is not None and str(value).strip() != "1"
    ]
