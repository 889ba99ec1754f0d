"""Print what a wheel requires on this machine, one requirement a line. Knows wheels, not vLLM."""

import argparse
import zipfile
from email.parser import BytesParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def metadata_requirements(wheel: Path) -> list[Requirement]:
    """Every `Requires-Dist` line of the wheel, for all platforms and extras."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = BytesParser().parsebytes(archive.read(name))
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def applies_here(requirement: Requirement) -> bool:
    """Whether this interpreter and platform need it when no extra is asked for."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME")
    arguments = parser.parse_args()
    without = {canonicalize_name(name) for name in arguments.without}
    for requirement in metadata_requirements(arguments.wheel):
        if applies_here(requirement) and canonicalize_name(requirement.name) not in without:
            requirement.marker = None
            print(requirement)


if __name__ == "__main__":
    main()
