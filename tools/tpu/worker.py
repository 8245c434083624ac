"""Compiles one program for TPU v4i, ahead of time and without a TPU. Runs in a process of its own.

    python -m tools.tpu.worker alexnet-inf FOLDER '{"xla_msa_enable": "DISABLED"}'

The compiler writes its dumps into the folder, and this module a `facts.json` with versions and
the compiler's own totals. A bad flag aborts the process: `compile.py` turns that into an error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

TOPOLOGY = "v4 lite:1x1"
"""One core, 128 MiB of CMEM, 8 GiB of HBM: TPU v4i by its properties."""


def main(source: str, folder: str, options: dict[str, str]) -> None:
    """Compile a program of the suite, or 'module:function' (which returns function, arguments, donated)."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v4-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "XLA_FLAGS": f"--xla_dump_to={folder} --xla_dump_hlo_as_text",
    }
    import jax
    from jax.experimental import topologies

    function, arguments, donated = _made(source)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY)
    where = jax.sharding.SingleDeviceSharding(topology.devices[0])
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), arguments)
    compiled = jax.jit(function, donate_argnums=donated).lower(*placed).compile(compiler_options=options)
    counted: dict[str, float] = compiled.cost_analysis()
    facts = {
        "device": topology.devices[0].device_kind,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")},
        "cost_analysis": {
            key: counted.get(key, 0.0) for key in ("flops", "transcendentals", "bytes accessed")
        },
    }
    (Path(folder) / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _made(source: str) -> Any:
    from tools.tpu.suite import SUITE

    if source in SUITE:
        return SUITE[source].make()
    module, _, name = source.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    return getattr(importlib.import_module(module), name)()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
