"""What `fit` takes before its first answer, with layers that are alike traced once and with every layer traced.

    python benchmarks/fit_tracing.py --out benchmarks/results/fit_tracing.json
    python benchmarks/fit_tracing.py --only 'llama*'

Models of transformers, narrow and as deep as they are published: how long tracing takes depends on how many ops there
are, not on their size. Each row has two processes of its own, one after another, which make the same plan without measuring
ops. Times are processor seconds of one thread, so that other work beside it says little: `fit` in all, and AOTAutograd with
what is done to its graph. Dynamo's own part is the same in both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.fit_sweep import made_on

NARROW = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "num_layers": 24, "vocab_size": 256}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-7b": ("LlamaForCausalLM", {**NARROW, **HEADS, "num_hidden_layers": 32}),
    "qwen2-7b": ("Qwen2ForCausalLM", {**NARROW, **HEADS, "num_hidden_layers": 28}),
    "gpt2-medium": ("GPT2LMHeadModel", {"n_embd": 64, "n_head": 4, "n_layer": 24, "vocab_size": 256}),
    "bert-large": ("BertForMaskedLM", {**NARROW, "num_attention_heads": 4, "num_hidden_layers": 24}),
    "t5-large": ("T5ForConditionalGeneration", T5),
    "vit-large": ("ViTForImageClassification", {**NARROW, "num_attention_heads": 4, "num_hidden_layers": 24}),
    "mixtral": ("MixtralForCausalLM", {**NARROW, **HEADS, "num_hidden_layers": 32, "num_local_experts": 4}),
    "falcon-mamba-7b": (
        "FalconMambaForCausalLM",
        {**NARROW, "num_hidden_layers": 24, "state_size": 4, "time_step_rank": 4},
    ),
}
TOKENS = 32


def build(name: str, train: bool) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, MODELS[name][0])
    model = kind(kind.config_class(**MODELS[name][1])).train(train)
    if "Image" in MODELS[name][0]:
        given = {"pixel_values": torch.randn(2, 3, 224, 224)}
        return model, {**given, "labels": torch.zeros(2, dtype=torch.int64)} if train else given
    words = torch.randint(0, 256, (2, TOKENS))
    given = {"input_ids": words}
    if "Conditional" in MODELS[name][0]:
        given["decoder_input_ids"] = words
    return model, {**given, "labels": words} if train else given


def child(name: str, train: bool, share: bool) -> dict[str, Any]:
    """One fit, in a process of its own."""
    import loadmaster
    from loadmaster.execute import compile_backend
    from loadmaster.program.importers.torch.repeated_layers import share_layers

    traced: list[float] = []
    layers = 0
    whole = compile_backend._compiled

    def timed(*args: Any, **options: Any) -> Any:
        before = time.process_time()
        found = whole(*args, **options)
        traced.append(time.process_time() - before)
        return found

    def shared(*args: Any) -> Any:
        nonlocal layers
        found = share_layers(*args) if share else None
        layers += 0 if found is None else len(found)
        return found

    vars(compile_backend).update(_compiled=timed, share_layers=shared)
    model, given = build(name, train)
    before = time.process_time()
    loadmaster.fit(model, given, memory="75%", device="cpu", search=0, measure=False, quiet=True)
    seconds = time.process_time() - before
    graphs = model.fitted.report["graphs"]
    return {
        "seconds": seconds,
        "traced": sum(traced),
        "layers": layers,
        "ops": sum(each["ops"] for each in graphs),
        "predicted": sum(each["predicted_seconds"] for each in graphs),
    }


def row(name: str, train: bool) -> dict[str, Any]:
    found = {}
    for share in (False, True):
        words = [sys.executable, __file__, "--child", name, str(int(train)), str(int(share))]
        answer = subprocess.run(words, check=True, capture_output=True, text=True)
        found[share] = json.loads(answer.stdout.splitlines()[-1])
    whole, ours = found[False], found[True]
    if (whole["ops"], whole["predicted"]) != (ours["ops"], ours["predicted"]):
        raise SystemExit(f"{name}: the plans are not the same")
    return {
        "case": f"{name}, {'training' if train else 'inference'}",
        "machine": "cpu",
        "solver": "fit",
        "seed": 0,
        "evaluations": None,
        "seconds": ours["seconds"],
        "value": ours["seconds"],
        "unit": "s",
        "baseline": whole["seconds"],
        "bound": None,
        "gap": None,
        "status": "measured",
        "extra": {
            "ops": ours["ops"],
            "layers": ours["layers"],
            "aot": ours["traced"],
            "aot_whole": whole["traced"],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="patterns of models, by commas")
    parser.add_argument("--out", type=Path, help="where to write the rows")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, train, share = arguments.child
        print(json.dumps(child(name, train == "1", share == "1")))
        return
    rows = []
    print(f"{'model':28} {'ops':>6} {'layers':>6} {'fit, s':>14} {'AOTAutograd, s':>16}")
    for name in MODELS:
        for train in (False, True):
            if not any(fnmatch(name, each) for each in arguments.only.split(",")):
                continue
            rows.append(row(name, train))
            each, extra = rows[-1], rows[-1]["extra"]
            print(
                f"{each['case']:28} {extra['ops']:6} {extra['layers']:6} {each['baseline']:6.1f} → {each['value']:5.1f} "
                f"{extra['aot_whole']:8.1f} → {extra['aot']:5.1f}",
                flush=True,
            )
    if arguments.out:
        document = {
            "suite": "fit-tracing",
            "command": " ".join(["python", *sys.argv]),
            **made_on(),
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
