"""`--json` of every command, run in this process.

Left out: 'run', 'calibrate' and 'export executorch', which need PyTorch; 'train' and 'transfer', which compile
networks for 10 s and more (`learned` and `policies` hold what they do).
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unchanged import parts
from unchanged.normal import normal

BUFFERS = "id,lower,upper,size\na,0,3,4\nb,1,5,2\nc,2,6,7\nd,4,8,3\ne,6,9,4\nf,0,9,1\ng,3,7,6\n"
JAX_MODULE = "import jax.numpy as jnp\n\ndef f(x, w):\n    return jnp.tanh(x @ w) @ w.T\n"
HLO = """HloModule tiny, is_scheduled=true

ENTRY %main (x: f32[4,8], w: f32[8,2]) -> f32[4,2] {
  %x = f32[4,8]{1,0} parameter(0)
  %w = f32[8,2]{1,0} parameter(1)
  %y = f32[4,2]{1,0} dot(f32[4,8]{1,0} %x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %z = f32[4,2]{1,0} exponential(%y)
}
"""
MCU = "-m imxrt1170:tcm=1KiB,ocram=2KiB"
COMMANDS: dict[str, str] = {
    "models": "models",
    "models NAME": "models gnmt-2",
    "machines": "machines",
    "machines NAME": "machines nnp-i",
    "machines GRAPH": "machines p100x4",
    "solvers": "solvers",
    "solvers NAME": "solvers msa",
    "inspect": "inspect resnet50 -m nnp-i --top 3",
    "inspect TPU": "inspect wavenet -m tpu-v4i",
    "import jax": "import unchanged_net:f --arg f32[8,16] --arg f32[16,4] --weights 1 --out net.npz",
    "import tflite": "import model.tflite --out model.npz",
    "import onnx": "import squeezenet.onnx --out onnx.npz",
    "import hlo": "import tiny.hlo --format hlo --out hlo.npz",
    "inspect program": "inspect model.npz -m imxrt1170",
    "plan mapping": "plan resnet50 -m nnp-i --solver search --budget 60 --exact-seconds 0 --out map.json",
    "plan mapping density": "plan bert -m nnp-i --solver density --exact-seconds 0 --no-run --out bert.json",
    "plan malloc-game": "plan alexnet-inf -m tpu-v4i-16m --solver search --set method=es-moves --budget 70 --seed 1",
    "plan malloc-game auto": "plan alexnet-inf -m tpu-v4i-16m --budget 70 --no-run --out game.json",
    "plan offload": "plan bert -m h200 --capacity hbm=40MiB --problem offload --solver search --budget 60",
    "plan graph": "plan resnet50 -m p100x2 --solver search --budget 60 --out graph.json",
    "plan graph heft": "plan resnet50 -m p100x2 --solver heuristic --set rule=heft --no-run",
    "plan graph tasks": "plan resnet50 -m p100x4 --tasks placement --solver heuristic --set rule=m-etf --no-run",
    "plan order": "plan inception-v3 --objective peak-memory --solver heuristic --set rule=peak-greedy",
    "plan allocation": "plan resnet50 -m arena:4MiB",
    "plan bytes-moved": "plan resnet50 -m nnp-i --objective bytes-moved --solver density --exact-seconds 0 --no-run",
    "plan pins": "plan resnet50 -m nnp-i --solver density --exact-seconds 0 --no-run --pin stage4.block1.conv2.w=dram",
    "plan fits": "plan resnet50 -m arena:64MiB --fits",
    "plan fits not": "plan resnet50 -m arena:1MiB --fits",
    "plan capacity share": "plan bert:layers=2 -m h200 --capacity hbm=70% --problem offload --solver heuristic --set rule=spread --no-run",
    "plan refused": "plan bert:layers=2 -m h200 --capacity hbm=60% --problem offload --solver heuristic --set rule=spread --no-run",
    "plan mcu": f"plan model.tflite {MCU} --solver density --exact-seconds 0 --out mcu.json --no-run",
    "simulate": "simulate resnet50 -m nnp-i",
    "simulate plan": "simulate resnet50 map.json -m nnp-i",
    "simulate game": "simulate alexnet-inf game.json -m tpu-v4i-16m",
    "simulate graph": "simulate resnet50 graph.json -m p100x2",
    "check": "check resnet50 map.json -m nnp-i",
    "check another": "check resnet50 map.json -m nnp-i-half",
    "check broken": "check resnet50 broken.json -m nnp-i",
    "allocate least": "allocate buffers.csv --minimize --solver exact --out placed.csv",
    "allocate fit": "allocate buffers.csv --capacity 24",
    "allocate not": "allocate buffers.csv --capacity 8",
    "allocate first-fit": "allocate buffers.csv --minimize --solver heuristic --set rule=first-fit",
    "allocate model": "allocate resnet50 --minimize --solver heuristic --set rule=first-fit",
    "runs": "runs runs --sort program",
    "compare": "compare {plan mapping} {plan mapping}",
    "compare plans": "compare {plan graph}/best.json {plan graph}",
    "compare different": "compare {plan mapping} {plan graph}",
    # Not a mapping run: which improvements its log names depends on how fast they come.
    "replay malloc-game": "replay {plan malloc-game}",
    "replay graph": "replay {plan graph}",
    "validate": "validate {plan graph}/best.json",
    "report": "report {plan malloc-game} --out report.html",
    "report plan": "report resnet50 map.json -m nnp-i --out plan.html",
    "figures": "figures {plan mapping} {plan malloc-game} --out figures",
    "export header": f"export header model.tflite mcu.json {MCU}",
    "export trace": f"export trace model.tflite mcu.json {MCU}",
    "export csv": f"export csv model.tflite mcu.json {MCU} --out tables",
    "export model-explorer": f"export model-explorer model.tflite mcu.json {MCU} --out nodes",
    "export tflm": f"export tflm model.tflite mcu.json {MCU} --no-verify",
    "export onnx-metadata": "export onnx-metadata squeezenet.onnx onnx.json -m imxrt1170 --overwrite",
    "export ort": "export ort squeezenet.onnx onnx.json -m imxrt1170 --no-verify --force --overwrite",
    "plan onnx": "plan squeezenet.onnx -m imxrt1170 --solver density --exact-seconds 0 --no-run --out onnx.json",
    "bench malloc": "bench malloc --quick --case alexnet-inf/tpu-v4i-16m --solver msa",
    "bench suite": "bench nothing",
    "bench case": "bench allocation --quick --case nothing",
    "unknown model": "inspect resnet51",
    "unknown machine": "inspect resnet50 -m nnp",
    "unknown solver": "plan resnet50 -m nnp-i --solver densty",
}
AFTER = {
    "inspect program": ["import tflite"],
    "simulate plan": ["plan mapping"],
    "simulate game": ["plan malloc-game auto"],
    "simulate graph": ["plan graph"],
    "check": ["plan mapping"],
    "check another": ["plan mapping"],
    "check broken": ["plan mapping"],
    "report plan": ["plan mapping"],
    "runs": ["plan mapping", "plan malloc-game", "plan offload", "plan order"],
    "export onnx-metadata": ["plan onnx"],
    "export ort": ["plan onnx"],
} | {f"export {name}": ["plan mcu"] for name in ("header", "trace", "csv", "model-explorer", "tflm")}
"""Commands whose files a command reads; runs in braces say it themselves."""


def names() -> list[str]:
    """One entry a command line."""
    return list(COMMANDS)


def compute(name: str) -> dict[str, Any]:
    """The document that a command prints, and hashes of what it exports."""
    document = _document(name)
    answer = normal(document, str(_folder()))
    answer["line"] = COMMANDS[name]
    for row in answer["rows"] if isinstance(answer["rows"], list) else []:
        if row.get("what") == "report":
            row.pop("bytes")  # of a file that tells dates and versions
    if name.startswith("export"):
        files = [_folder() / each for row in document["rows"] for each in row.get("files", [])]
        answer["contents"] = {each.name: _contents(each) for each in files if each.is_file()}
    return answer


def _contents(path: Path) -> Any:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if path.suffix == ".json":  # the note beside a file
        return normal(json.loads(content), str(_folder()))
    return hashlib.sha256(content).hexdigest()[:16]


@functools.cache
def _document(name: str) -> dict[str, Any]:
    line = COMMANDS[name]
    runs = {other: "{%s}" % other for other in COMMANDS if "{%s}" % other in line}  # noqa: UP031
    for other in [*AFTER.get(name, []), *runs]:
        _document(other)
    if name == "check broken":
        _break(_folder() / "map.json", _folder() / "broken.json")
    words = line.split()
    if runs:
        for other, written in runs.items():
            line = line.replace(written, _document(other)["run"])
        words = line.split()
    if name == "runs":  # others may have left runs too
        _only_runs([_document(other)["run"] for other in AFTER[name]])
        words[1] = "few"
    with _inside():
        code, printed = parts.run_command(*words, "--json")
    document: dict[str, Any] = json.loads(printed)
    assert document["exit"] == code
    return document


def _only_runs(paths: list[str]) -> None:
    for path in paths:
        shutil.copytree(_folder() / path, _folder() / "few" / Path(path).name)


def _break(path: Path, broken: Path) -> None:
    """The first two residencies lie at the same offset of the same memory."""
    document = json.loads(path.read_text())
    first, second = document["residencies"][:2]
    second |= {key: first[key] for key in ("memory", "offset")}
    broken.write_text(json.dumps(document))


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="unchanged-")).resolve()
    (folder / "buffers.csv").write_text(BUFFERS)
    (folder / "unchanged_net.py").write_text(JAX_MODULE)
    (folder / "tiny.hlo").write_text(HLO)
    (folder / "model.tflite").write_bytes(parts.branchy(3, 20))
    import onnx

    light = Path(onnx.__file__).parent / "backend/test/data/light"
    shutil.copy(light / "light_squeezenet.onnx", folder / "squeezenet.onnx")
    return folder


def clear() -> None:
    """Remove what the commands wrote."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(), ignore_errors=True)
        _folder.cache_clear()
        _document.cache_clear()


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    with contextlib.chdir(_folder()):
        sys.path.insert(0, str(_folder()))
        try:
            yield
        finally:
            sys.path.remove(str(_folder()))
