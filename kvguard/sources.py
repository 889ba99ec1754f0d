"""Where settings come from: file, environment and flags, and every fault of theirs at once."""

import os
import re
from pathlib import Path
from typing import Any, Final

from pydantic_settings import SettingsError as BrokenVariable

from kvguard.errors import SettingsError
from kvguard.section import setting_names
from kvguard.settings import PREFIX, Settings
from kvguard.yaml_mapping import read_mapping

DEFAULT_FILE: Final = Path("kvguard.yaml")

# Kubernetes puts these into every pod beside a Service named kvguard...; they are nobody's settings.
_SERVICE_LINK = re.compile(r"KVGUARD(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP)(_.*)?)")
_SERVICE_URL = re.compile(r"(tcp|udp)://.*")


def load_settings(*, config: Path | None = None, flags: dict[str, Any] | None = None) -> Settings:
    """Read every source. Raises SettingsError listing every fault."""
    faults = _unknown_variables()
    try:
        content = _content(DEFAULT_FILE if config is None else config, required=config is not None)
    except SettingsError as error:
        if not isinstance(error.sound, dict):
            raise error.beside(faults) from error
        faults += error.faults
        content = error.sound
    try:
        bound = type("Settings", (Settings,), {"file_content": content})
        settings: Settings = bound(**(flags or {}))
    except BrokenVariable as error:
        raise SettingsError([*faults, f"{error}: must be JSON"]) from error
    except SettingsError as error:
        raise error.beside(faults) from error
    if faults:
        raise SettingsError(faults, sound=settings)
    return settings


def _content(file: Path, *, required: bool) -> dict[str, Any]:
    content = read_mapping(file, names=setting_names(Settings))
    if content is None and required:
        raise SettingsError([f"no such file: {file}"])
    return content or {}


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
