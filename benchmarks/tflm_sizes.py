"""The sizes of TFLite Micro's structs as compilers for microcontrollers see them, beside the ones we compute with.

    python benchmarks/tflm_sizes.py --wheel xmos_ai_tools-….whl [--wheel …]

takes the headers of TFLite Micro that a package carries (xmos-ai-tools has a fork of them), compiles `sizeof` of every
struct that they declare with each compiler that is installed (`arm-none-eabi-g++` for Cortex-M, `g++` for this
computer), and writes `results/tflm_sizes.json`; `benchmarks/micro_arena.py` makes its part of the page. Nothing is run,
and no header is part of the repository.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.record import commit, write
from loadmaster.export import tflm_arena as arena
from loadmaster.export.tflm_kernels import KERNELS, LSTM

COMPILERS = {
    "64 bits": (arena.HOST, "g++"),
    "Cortex-M4": (arena.MCU, "arm-none-eabi-g++ -mcpu=cortex-m4 -mthumb -fno-short-enums"),
    "Cortex-M7": (arena.MCU, "arm-none-eabi-g++ -mcpu=cortex-m7 -mthumb -fno-short-enums"),
    "Cortex-M33": (arena.MCU, "arm-none-eabi-g++ -mcpu=cortex-m33 -mthumb -fno-short-enums"),
    "Cortex-M55": (arena.MCU, "arm-none-eabi-g++ -mcpu=cortex-m55 -mthumb -fno-short-enums"),
    "Cortex-M55, enums packed": (arena.MCU._replace(enum=1), "arm-none-eabi-g++ -mcpu=cortex-m55 -mthumb"),
}
"""Name -> whose pointers and enums, and the command. Bare-metal Arm packs enums unless it is told not to."""
HEADERS = [
    "c/common.h",
    "c/builtin_op_data.h",
    "kernels/internal/types.h",
    "micro/micro_allocator.h",
    "micro/micro_allocation_info.h",
    "micro/micro_resource_variable.h",
    "micro/arena_allocator/single_arena_buffer_allocator.h",
    "micro/arena_allocator/recording_single_arena_buffer_allocator.h",
    "micro/recording_micro_allocator.h",
    "micro/memory_planner/greedy_memory_planner.h",
    "micro/kernels/activations.h",
    "micro/kernels/add.h",
    "micro/kernels/conv.h",
    "micro/kernels/dequantize.h",
    "micro/kernels/fully_connected.h",
    "micro/kernels/leaky_relu.h",
    "micro/kernels/logistic.h",
    "micro/kernels/lstm_shared.h",
    "micro/kernels/mul.h",
    "micro/kernels/quantize.h",
    "micro/kernels/reduce.h",
    "micro/kernels/softmax.h",
    "micro/kernels/strided_slice.h",
    "micro/kernels/sub.h",
    "micro/kernels/svdf.h",
]
STRUCTS: dict[str, arena.Struct] = {
    "TfLiteEvalTensor": arena.EVAL_TENSOR,
    "TfLiteTensor": arena.TENSOR,
    "TfLiteAffineQuantization": arena.QUANTIZATION,
    "NodeAndRegistration": arena.NODE,
    "internal::ScratchBufferRequest": arena.SCRATCH_REQUEST,
    "ScratchBufferHandle": arena.SCRATCH_HANDLE,
    "AllocationInfo": arena.ALLOCATION_INFO,
    "SubgraphAllocations": arena.SUBGRAPH,
    "SingleArenaBufferAllocator": arena.BUFFER_ALLOCATOR,
    "GreedyMemoryPlanner": arena.GREEDY_PLANNER,
    "MicroAllocator": arena.MICRO_ALLOCATOR,
    "MicroResourceVariables": arena.VARIABLES,
    "RecordingSingleArenaBufferAllocator": arena.RECORDING_BUFFER_ALLOCATOR,
    "RecordingMicroAllocator": arena.RECORDING_MICRO_ALLOCATOR,
}
"""Of the runtime itself."""
DATA = {
    "CONV_2D": "OpDataConv",
    "FULLY_CONNECTED": "OpDataFullyConnected",
    "ADD": "OpDataAdd",
    "SUB": "OpDataSub",
    "MUL": "OpDataMul",
    "SOFTMAX": "SoftmaxParams",
    "STRIDED_SLICE": "StridedSliceParams",
    "MEAN": "OpDataReduce",
    "LOGISTIC": "OpDataLogistic",
    "QUANTIZE": "OpDataQuantizeReference",
    "DEQUANTIZE": "DequantizeOpData",
    "PRELU": "PreluParams",
    "LEAKY_RELU": "LeakyReluOpData",
    "RELU": "ReluOpData",
    "RELU6": "Relu6OpData",
    "HARD_SWISH": "HardSwishParams",
    "SVDF": "OpDataSvdf",
    LSTM: "OpDataLSTM",
}
"""Operator -> its kernel's data, where a header declares them; the arena rounds these up to 16 bytes."""
OPTIONS = {
    "CONV_2D": "Conv",
    "DEPTHWISE_CONV_2D": "DepthwiseConv",
    "TRANSPOSE_CONV": "TransposeConv",
    "FULLY_CONNECTED": "FullyConnected",
    "ADD": "Add",
    "SUB": "Sub",
    "MUL": "Mul",
    "DIV": "Div",
    "MAX_POOL_2D": "Pool",
    "SOFTMAX": "Softmax",
    "CONCATENATION": "Concatenation",
    "RESHAPE": "Reshape",
    "SQUEEZE": "Squeeze",
    "STRIDED_SLICE": "StridedSlice",
    "MIRROR_PAD": "MirrorPadding",
    "MEAN": "Reducer",
    "LEAKY_RELU": "LeakyRelu",
    "L2_NORMALIZATION": "L2Norm",
    "SPACE_TO_DEPTH": "SpaceToDepth",
    "DEPTH_TO_SPACE": "DepthToSpace",
    "PACK": "Pack",
    "UNPACK": "Unpack",
    "SHAPE": "Shape",
    "SPLIT": "Split",
    "SPLIT_V": "SplitV",
    "GATHER": "Gather",
    "CAST": "Cast",
    "ARG_MAX": "ArgMax",
    "ARG_MIN": "ArgMin",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighbor",
    "RESIZE_BILINEAR": "ResizeBilinear",
    "BATCH_MATMUL": "BatchMatMul",
    "VAR_HANDLE": "VarHandle",
    "CALL_ONCE": "CallOnce",
    "IF": "If",
    "WHILE": "While",
    "SVDF": "SVDF",
    LSTM: "UnidirectionalSequenceLSTM",
}
"""Operator -> the middle of its options' name: TfLite…Params."""


def declared() -> dict[str, arena.Struct]:
    """C++ type -> the struct that we compute with."""
    data = {name: arena.Struct(KERNELS[operator].data) for operator, name in DATA.items()}
    options = {f"TfLite{n}Params": arena.Struct(KERNELS[operator].options) for operator, n in OPTIONS.items()}
    return STRUCTS | data | options


def source(types: list[str]) -> str:
    """A file that no compiler refuses unless a struct is missing, with an array as long as each struct."""
    lines = [f'#include "tensorflow/lite/{header}"' for header in HEADERS]
    lines += ["namespace tflite {}", "namespace tflite_micro {}"]  # the second is the fork's
    lines += ["using namespace tflite;", "using namespace tflite_micro;"]
    lines += [f"char size_{number}[sizeof({name})];" for number, name in enumerate(types)]
    return "\n".join(lines) + "\n"


def compile_sizes(command: str, file: Path, include: Path | None = None) -> list[int]:
    """What a compiler says `size_0`, `size_1`, … are long."""
    where = [] if include is None else ["-I", str(include)]
    flags = ["-std=c++17", "-DTF_LITE_STATIC_MEMORY", "-w", "-S", "-o", "-"]
    done = subprocess.run([*command.split(), *flags, *where, str(file)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr[:400]}")
    found = {int(n): int(size) for n, size in re.findall(r"\.size\s+size_(\d+),\s*(\d+)", done.stdout)}
    return [found[number] for number in sorted(found)]


def record(wheels: list[Path]) -> None:
    ours = declared()
    answer: dict[str, Any] = {"command": "python benchmarks/tflm_sizes.py --wheel WHEEL", "commit": commit()}
    answer["headers"] = ["-".join(wheel.name.split("-")[:2]) for wheel in wheels]
    rows: list[dict[str, Any]] = []
    for wheel in wheels:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".h")])
            root = next(Path(folder).rglob("tensorflow/lite/micro/micro_allocator.h")).parents[3]
            (Path(folder) / "sizes.cc").write_text(source(list(ours)), encoding="utf-8")
            for name, (target, command) in COMPILERS.items():
                if shutil.which(command.split()[0]) is None:
                    continue
                sizes = compile_sizes(command, Path(folder) / "sizes.cc", root)
                rows += [
                    {
                        "struct": struct,
                        "compiler": name,
                        "bytes": size,
                        "ours_bytes": ours[struct].size(target),
                    }
                    for struct, size in zip(ours, sizes, strict=True)
                ]
    used = {row["compiler"] for row in rows}
    answer["compilers"] = {name: command for name, (_, command) in COMPILERS.items() if name in used}
    write("tflm_sizes", answer | {"rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, action="append", required=True)
    record(parser.parse_args().wheel)
