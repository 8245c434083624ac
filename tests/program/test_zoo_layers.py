"""EGRL's three graphs: the golden values of the specification, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.errors import BadProgram, MissingPackage
from loadmaster.program import Program, TensorKind
from loadmaster.program.models import load_model
from loadmaster.program.zoo import MODELS, _key, load_workload
from loadmaster.program.zoo.bert import bert
from loadmaster.program.zoo.resnet import resnet

GOLDEN = {
    # nodes, edges, weight tensors, weight bytes, activation bytes, MACs, vector ops, live activation bytes
    "resnet50": (57, 72, 54, 25_613_152, 11_318_736, 4_089_184_256, 1_912_688, 1_806_336),
    "resnet101": (108, 140, 105, 44_657_504, 16_436_688, 7_801_405_440, 1_912_688, 1_806_336),
    "bert": (376, 447, 172, 109_850_120, 50_946_818, 11_174_217_216, 91_717_632, 884_736),
}


def live_activations(program: Program) -> int:
    """The largest sum of activations alive at one op, counted the slow way."""
    made = [t for t in range(program.n_tensors) if program.producer[t] >= 0]
    start, readers = program.readers
    last = {t: max([program.producer[t], *readers[start[t] : start[t + 1]]]) for t in made}
    outputs = {t for t in made if program.tensor_kind[t] == TensorKind.OUTPUT}
    return max(
        sum(
            int(program.tensor_bytes[t])
            for t in made
            if program.producer[t] <= op and (op <= last[t] or t in outputs)
        )
        for op in range(program.n_ops)
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values(name: str) -> None:
    program = load_model(name)
    weights = program.tensor_kind == TensorKind.WEIGHT
    made = program.producer >= 0
    edges = int((program.producer[program.read_tensor] >= 0).sum())
    flops = program.op_flops.sum(axis=0)
    assert (
        program.n_ops,
        edges,
        int(weights.sum()),
        int(program.tensor_bytes[weights].sum()),
        int(program.tensor_bytes[made].sum()),
        int(flops[0]) // 2,
        int(flops[1]),
        live_activations(program),
    ) == GOLDEN[name]


def test_batch_and_type_scale() -> None:
    one, eight = resnet(50), resnet(50, batch=8, element_bytes=2)
    assert eight.op_flops.sum() == 8 * one.op_flops.sum()
    made = one.producer >= 0
    assert eight.tensor_bytes[made].sum() == 16 * one.tensor_bytes[made].sum()
    assert bert(layers=2).n_ops == 4 + 2 * 31


def test_attributes_serve_the_features() -> None:
    program = load_model("resnet50")
    stem = program.attributes(0)
    assert (stem["kernel"], stem["stride"], stem["ifm"], stem["ofm"]) == (7, 2, [224, 224, 3], [112, 112, 64])


def test_every_model_has_a_machine_and_a_summary() -> None:
    from loadmaster.machine import load_machine

    assert {
        "resnet50",
        "resnet101",
        "bert",
        "gnmt-8",
        "amoebanet",
        "llama",
        "vit-l16",
        "unet",
        "moe",
        "mamba",
    } <= set(MODELS)
    for model in MODELS.values():
        assert load_machine(model.machine) and model.summary


def test_unknown_models_and_parameters() -> None:
    with pytest.raises(BadProgram, match="did you mean 'resnet50'"):
        load_model("resnet5O")
    with pytest.raises(BadProgram, match="can't take 'steps=many'"):
        load_workload("gnmt-8:steps=many")
    with pytest.raises(BadProgram, match=r"has no parameter 'token'.*did you mean 'tokens'"):
        load_workload("bert:token=5")
    with pytest.raises(BadProgram, match="can't take 'element_bytes=3'"):
        load_workload("resnet50:element_bytes=3")


def test_layer_level_models_take_parameters() -> None:
    large = load_workload("resnet50:batch=16,element_bytes=2")
    assert large.hash == resnet(50, batch=16, element_bytes=2).hash
    assert large.hash != load_workload("resnet50").hash
    assert load_workload("bert:layers=2").n_ops == 4 + 2 * 31


def test_traced_models_are_cached(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("jax")
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path))
    first = load_model("gnmt-2:steps=2")
    (cached,) = tmp_path.glob("gnmt-2-steps=2-*.npz")
    before = cached.stat().st_mtime_ns
    assert load_model("gnmt-2:steps=2").named_hash == first.named_hash
    assert cached.stat().st_mtime_ns == before, "the second time it is read, not made"
    cached.write_bytes(b"damaged")
    assert load_model("gnmt-2:steps=2").named_hash == first.named_hash
    with pytest.raises(BadProgram, match="a parameter that its family 'gnmt' does not know"):
        load_model("gnmt-2:wheels=4")


def test_without_jax_the_remedy_is_one_line(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    workload = MODELS["txl-2"].traced
    assert workload is not None
    with pytest.raises(MissingPackage, match=r"pip install 'loadmaster\[agents\]'"):
        _key(workload)


def test_the_cost_of_a_name_is_nothing() -> None:
    assert np.array_equal(resnet(50).op_flops, load_model("resnet50").op_flops)
