"""How long programs take to read and to write, and whether that grows as they do.

    python benchmarks/reader_speed.py [--json]

Each way is timed on a program and on one twice as long: work that is linear takes twice as long, and
anything from three times on hides a square. Ratios within one run can be compared between computers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadmaster.program import Builder, Program
from loadmaster.program.importers.hlo import import_hlo
from loadmaster.program.importers.jax import import_jax
from loadmaster.program.storage import load, save

REPEATS = 3


def chain(ops: int) -> Program:
    build = Builder("long")
    before = build.tensor("x", shape=(8, 8), dtype="f32", kind="input")
    for i in range(ops):
        after = build.tensor(f"layer{i % 100}/t{i}", shape=(8, 8), dtype="f32")
        build.op(f"op{i}", ("add", "mul", "tanh")[i % 3], reads=[before], writes=[after], vector=64)
        before = after
    return build.build()


def saving(ops: int, folder: Path) -> Callable[[], object]:
    program = chain(ops)
    return lambda: save(program, folder / "p.npz")


def loading(ops: int, folder: Path) -> Callable[[], object]:
    save(chain(ops), folder / "q.npz")
    return lambda: load(folder / "q.npz")


def reading_hlo(ops: int, _: Path) -> Callable[[], object]:
    rows = "".join(
        f"  %v{n} = f32[64,64]{{1,0:T(8,128)}} add(%v{n - 1}, %v{max(0, n - 7)}), "
        f'metadata={{op_name="jit(f)/layer{n % 9}/add" stack_frame_id={n}}}\n'
        for n in range(1, ops + 1)
    )
    text = (
        "HloModule long, is_scheduled=true\n\nENTRY %e {\n"
        f"  %v0 = f32[64,64]{{1,0:T(8,128)}} parameter(0)\n{rows}}}\n"
    )
    return lambda: import_hlo(text)


def reading_jax(ops: int, _: Path) -> Callable[[], object]:
    import jax
    from jax import lax

    def long(x: Any) -> Any:
        for step in range(ops // 4):
            with jax.named_scope(f"t{step % 100}"):
                x = lax.mul(lax.tanh(lax.add(lax.neg(x), x)), x)
        return x

    given = jax.ShapeDtypeStruct((8,), "float32")
    traced = jax.jit(long).trace(given)

    class Traced:
        """Traced already: that is JAX's own time."""

        def trace(self, x: Any) -> Any:
            return traced

    return lambda: import_jax(Traced(), (given,), name="chain")


WAYS = {
    "save": (saving, 100_000),
    "load": (loading, 100_000),
    "hlo": (reading_hlo, 10_000),
    "jax": (reading_jax, 20_000),
}


def seconds(work: Callable[[], object]) -> float:
    """The best of some repeats: what else the computer does only adds."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    for name, (make, ops) in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            half, whole = (seconds(make(count, Path(folder))) for count in (ops // 2, ops))
        row = {"way": name, "ops": ops, "seconds": round(whole, 3), "ratio": round(whole / half, 2)}
        text = f"{name:5} {ops:>7,} ops {whole:6.2f} s, {row['ratio']:.2f} times that of half as many"
        print(json.dumps(row) if as_json else text)


if __name__ == "__main__":
    main()
