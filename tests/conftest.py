"""What holds for all tests.

Every test can import the helpers of this folder: `from generate import random_program`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# The networks of the tests are tiny: nearly all of their time is XLA's compiler, which is done in
# little more than half the time without its newer code generator.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
