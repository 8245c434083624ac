"""`loadmaster demo`: three scenes, a line each, and one page."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, write_text
from loadmaster.cli.progress import say
from loadmaster.files import replacing
from loadmaster.units import show_time

if TYPE_CHECKING:
    from loadmaster.planner import Result

MODEL = "four_branches.tflite"
"""Beside this file; `tools/demo_model.py` makes it."""
ARENA = 48 * 1024
PICTURE = (560, 420)
TPU_PROGRAM, TPU_PLANS = "alexnet-train", 10_000
CELL, CHIP, MEASUREMENTS = "bert:tokens=512,batch=4", "nnp-i", 50
"""Of the twenty cells of the mapping suite the one where the compiler leaves most room."""


@dataclass(frozen=True)
class Scene:
    """What was shown. Bars are (name, value, text); the last one is the proven least."""

    name: str
    title: str
    line: str
    bars: tuple[tuple[str, int, str], ...]
    unit: str
    how: str
    """What is real and what is simulated."""
    command: str = ""
    """Does the same."""
    pictures: tuple[tuple[str, str], ...] = ()
    """Side by side: a caption and SVG."""
    links: dict[str, Path] = field(default_factory=dict)


def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where pages, runs and the model go.")] = Path(
        "loadmaster-demo"
    ),
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> Answer:
    """Three scenes in under two minutes: a microcontroller, a TPU, and a chip known by its stopwatch.

    A model that does not fit a microcontroller's arena, then does, run by TFLite Micro's interpreter; a
    TPU program as the production compiler placed it and as the learned player does, with the proven bound;
    a chip of which only measured times are known: EGRL against the compiler. All of it ends in one page.

    Example: loadmaster demo --open
    """
    out.mkdir(parents=True, exist_ok=True)
    scenes: list[Scene] = []
    stages: list[tuple[str, Callable[[Path], Scene]]] = [
        ("a model that does not fit a microcontroller", show_microcontroller),
        ("a TPU program and its fast memory", show_tpu),
        ("a chip that is known by its stopwatch alone", show_stopwatch),
    ]
    for number, (title, stage) in enumerate(stages, 1):
        say(f"{number} of {len(stages)}: {title}")
        scenes.append(stage(out))
    page = out / "index.html"
    write_text(page, render_demo(scenes, out))
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    rows: list[dict[str, Any]] = [
        {
            "what": "scene",
            "name": scene.name,
            "line": scene.line,
            "unit": scene.unit,
            "values": {name: value for name, value, _ in scene.bars},
            "files": [str(path) for path in scene.links.values()],
        }
        for scene in scenes
    ]
    lines = [f"{number}. {scene.line}" for number, scene in enumerate(scenes, 1)]
    return Answer(rows, [*lines, f"page: {page}"], more={"page": str(page)})


def show_microcontroller(out: Path) -> Scene:
    """A model that needs another order: fitted, written, and run by the real interpreter where there is one."""
    from importlib.util import find_spec

    from loadmaster.export.picture import draw
    from loadmaster.export.tflm_fits import ORDER, fit_micro, verify_same
    from loadmaster.export.tflm_rewrite import make_draft, pack
    from loadmaster.machine import load_machine
    from loadmaster.program.importers.tflite.read import read_tflite

    model, written = Path(__file__).with_name(MODEL), out / "four_branches.planned.tflite"
    data, runs = model.read_bytes(), find_spec("tflite_micro") is not None
    own = out / MODEL
    with replacing(own) as temporary:
        temporary.write_bytes(data)
    found = fit_micro(str(model), load_machine(f"arena:{ARENA}"), rewrite=False)
    ways = {way.name: way for way in found.ways}
    first, ours = ways["as it is"].arena.total, ways[ORDER]
    assert ours.smaller is not None
    with replacing(written) as temporary:
        temporary.write_bytes(ours.smaller.data)
    ran = "computed: pip install 'loadmaster[tflite]' runs it"
    if runs:
        verify_same(data, ours.smaller.data, ours.smaller.packed, MODEL, exact=ours.arena.total)
        ran = "run by TFLite Micro's interpreter, the same to the last bit"
    before = pack(make_draft(read_tflite(data)), in_place=False)
    placed = {"as it is": before.buffers(), "in another order": ours.smaller.packed.buffers()}
    top = max(int((offsets + buffers.size).max()) for buffers, offsets in placed.values())
    pictures = []
    for name, (buffers, offsets) in placed.items():
        picture = out / f"arena {name}.svg".replace(" ", "_")
        draw(buffers, offsets, ARENA, picture, "addresses, op by op", size=PICTURE, top=top)
        fits = "fits" if int((offsets + buffers.size).max()) <= ARENA else "does not fit"
        pictures.append((f"{name}: {fits}", picture.read_text(encoding="utf-8")))
    return Scene(
        "microcontroller",
        "A microcontroller's model that does not fit, and then does",
        f"{MODEL} needs an arena of {first:,} bytes and there are {ARENA:,}; in another order {ours.arena.total:,} are "
        f"enough ({ran}), and no order needs fewer than {found.need:,}",
        (
            ("as it is", first, f"{first:,} bytes"),
            ("in another order", ours.arena.total, f"{ours.arena.total:,} bytes"),
            ("no order needs less", found.need, f"{found.need:,} bytes"),
        ),
        "bytes",
        "The bytes are TFLite Micro's own count, its own records included; the pictures show the tensors.",
        shlex.join(["loadmaster", "fits", str(own), "-m", f"arena:{ARENA}"]),
        tuple(pictures),
        {"the model": own, "the model that fits": written},
    )


def show_tpu(out: Path) -> Scene:
    """The production compiler's placement, the learned player's, and the bound."""
    from loadmaster.planner import plan

    result = plan(TPU_PROGRAM, solver="muzero", budget=TPU_PLANS, run=out / "runs")
    production, ours = _value(result, "production"), result.solution.value or 0
    saved = 1 - ours / production
    return Scene(
        "tpu",
        "A training step on a TPU: what lies in fast memory, and when",
        f"AlexNet's training step on a TPU v4i: {show_time(production)} as the production compiler placed it, "
        f"{show_time(ours)} ({saved:.1%} less) as the learned player does, and no plan takes less than "
        f"{show_time(result.bound.value)}",
        (
            ("production compiler", production, show_time(production)),
            ("learned player", ours, show_time(ours)),
            ("no plan takes less", result.bound.value, show_time(result.bound.value)),
        ),
        "ps",
        "The program and its production placement are those of the TPU compiler; times are simulated.",
        f"loadmaster plan {TPU_PROGRAM} --solver muzero --budget {TPU_PLANS}",
        links=_report(result),
    )


def show_stopwatch(out: Path) -> Scene:
    """EGRL with capacities and measured times alone, against the compiler that knows the machine."""
    from loadmaster.planner import plan

    options = {"view": "strict"}
    result = plan(CELL, CHIP, solver="egrl", options=options, budget=MEASUREMENTS, run=out / "runs")
    compiler, ours, least = _value(result, "compiler"), result.solution.value or 0, result.bound.value
    return Scene(
        "stopwatch",
        "A chip of which nothing is known but how long things take",
        f"BERT (512 tokens, batch 4) on an NNP-I that is known by its stopwatch alone: {show_time(compiler)} as the "
        f"compiler maps it, {show_time(ours)} after {MEASUREMENTS} measurements by EGRL; no map takes less than {show_time(least)}",
        (
            ("compiler", compiler, show_time(compiler)),
            (f"EGRL, {MEASUREMENTS} measurements", ours, show_time(ours)),
            ("no map takes less", least, show_time(least)),
        ),
        "ps",
        "The chip is simulated; EGRL sees capacities and the times of the maps that it tries.",
        f"loadmaster plan {CELL} -m {CHIP} --solver egrl --set view=strict --budget {MEASUREMENTS}",
        links=_report(result),
    )


def _value(result: Result, name: str) -> int:
    return next(row.value or 0 for row in result.baselines if row.name == name)


def _report(result: Result) -> dict[str, Path]:
    from loadmaster.report import write_report

    assert result.run is not None
    return {
        "the report: every tensor, address and copy": write_report(
            result.run, result.run / "report.html"
        ).path
    }


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #16202a; background: #fff }
h1 { margin: 0 } h2 { margin: 3rem 0 .5rem; font-size: 1.35rem } p { margin: .5rem 0 } .how { color: #5b6875; font-size: .9rem }
code { font: .85rem ui-monospace, monospace; overflow-wrap: anywhere } svg { max-width: 100%; height: auto }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-variant-numeric: tabular-nums } td { padding: .2rem .75rem .2rem 0; white-space: nowrap }
td.bar { width: 70%; white-space: normal } .bar svg { display: block; width: 100%; height: 1.2rem } td:last-child { text-align: right; padding: 0 }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem }
figure { margin: 0 } figcaption { font-weight: 600 }
@media (max-width: 40rem) { table, tbody, tr, td, td.bar { display: block; width: auto } td:last-child { text-align: left; margin-bottom: .75rem } }
@media (prefers-color-scheme: dark) {
  body { color: #e8edf2; background: #151b21 } .how { color: #97a5b2 } a { color: #8bf } figure svg { filter: invert(.9) hue-rotate(180deg) }
}
"""
COLOURS = ("#999999", "#0072b2", "#009e73")


def render_demo(scenes: list[Scene], out: Path) -> str:
    """The page: no script, nothing from elsewhere."""
    parts = []
    for number, scene in enumerate(scenes, 1):
        most = max(value for _, value, _ in scene.bars)
        rows = "".join(
            f'<tr><td>{escape(name)}</td><td class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" '
            f'role="img" aria-label="{escape(text)}"><rect width="{100 * value / most:.2f}" height="10" fill="{colour}"/>'
            f"</svg></td><td>{escape(text)}</td></tr>"
            for (name, value, text), colour in zip(scene.bars, COLOURS, strict=True)
        )
        links = ", ".join(
            f'<a href="{escape(path.relative_to(out).as_posix())}">{escape(text)}</a>'
            for text, path in scene.links.items()
        )
        figures = "".join(
            f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>"
            for caption, picture in scene.pictures
        )
        parts.append(
            f'<section id="{scene.name}"><h2>{number}. {escape(scene.title)}</h2><p>{escape(scene.line)}.</p>'
            f'<table>{rows}</table><div class="pictures">{figures}</div><p class="how">{escape(scene.how)}</p>'
            f'<p><span class="how">the same: </span><code>{escape(scene.command)}</code></p><p>{links}</p></section>'
        )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Loadmaster: three scenes</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><h1>Loadmaster</h1>'
        "<p>Which memory every tensor lives in, when it is copied, and how good that provably is.</p>"
        f"{''.join(parts)}</body></html>\n"
    )
