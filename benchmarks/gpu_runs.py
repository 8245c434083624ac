"""The GPU suite in four stages, so that little time on the GPU is needed. Each goes on where it was left.

    python benchmarks/gpu_runs.py measure --folder gpu               # on the GPU: machine, programs, op times
    python benchmarks/gpu_runs.py plan --folder gpu                  # anywhere, without PyTorch: plans
    python benchmarks/gpu_runs.py execute --folder gpu --cuda-graph  # on the GPU: plans
    python benchmarks/gpu_runs.py peers --folder gpu                 # on the GPU: what others do
    python benchmarks/record.py gpu --rows gpu/rows.jsonl --fresh

`--models`, `--percents` and `--solvers` narrow each of them, `--most-seconds` ends a stage in time.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.gpu_stages import main

if __name__ == "__main__":
    sys.exit(main())
