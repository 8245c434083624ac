"""Hardware in the loop of `plan`: a command measures offload plans, or the executor runs them on this
computer's own device (`--evaluator executor:cuda`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.cli.answer import Usage
from loadmaster.cli.model import size_of
from loadmaster.cli.plan_offload import offload_problem
from loadmaster.cli.planning import EXECUTOR
from loadmaster.cli.progress import say
from loadmaster.machine import Machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.offload.measured import MeasuredOffload, options_of
from loadmaster.offload.problem import Offload
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.problem import Problem

if TYPE_CHECKING:
    from loadmaster.cli.plan_posed import Asked

KINDS = ("offload", "mapping")


def commanded(plain: Offload, command: str, repeats: int, timeout: float) -> MeasuredOffload:
    """A command measures what an offload plan is worth."""
    return MeasuredOffload(
        plain.program, plain.machine, CommandEvaluator(command, timeout), repeats=repeats, **options_of(plain)
    )


def executed_problem(asked: Asked, kind: str, machine: Machine | None) -> Problem:
    """The problem of a PyTorch function, with an executor on the named device in the loop."""
    if kind not in KINDS or machine is None:
        raise Usage(
            f"the executor runs plans of offload and mapping, not of {kind}",
            object="--evaluator",
            number=kind,
            remedy="give --machine h200, or --problem offload",
        )
    if asked.noise or asked.pin or asked.pin_op or asked.objective != "time":
        raise Usage(
            "the executor measures the time of plans without pins",
            object="--evaluator",
            remedy="leave --noise, --pin and --objective out",
        )
    source, device = asked.model.source, str(asked.evaluator).removeprefix(EXECUTOR)
    from loadmaster.execute import own_allocator

    own_allocator.fewer_holes()
    from loadmaster.execute.evaluator import ExecutorEvaluator
    from loadmaster.execute.executor import backend_for
    from loadmaster.execute.ready import make_ready

    if device != "cpu":
        own_allocator.install()  # only before CUDA is first used
    backend_for(device).close()  # no device: told before anything is made
    if Path(source).exists() or ":" not in source:
        raise Usage(
            f"the executor runs PyTorch modules, and '{source}' is no module:function",
            object=source,
            remedy="give a function that returns (nn.Module, inputs)",
        )
    ready = make_ready(
        source,
        device,
        weights="random",
        training=asked.model.train,
        split_over=size_of(asked.model.split, "--split"),
    )
    base = ready.captured.program
    plain = offload_problem(
        base,
        machine,
        asked.shares,
        asked.model.costs,
        recompute=kind == "offload" and asked.recomputes(base),
        device=device,
    )
    repeats = plain.program.repeats
    captured = ready.captured if repeats is None else ready.captured.repeated(repeats.ops)
    say(f"weights of '{source}' are made up and laid into host memory")
    evaluator = ExecutorEvaluator(
        captured,
        plain.machine,
        device,
        ready.weights,
        ready.inputs,
        workspace=plain.reserve,
        kernels=plain.kernels,
    )
    if kind == "mapping":
        # A map says what lies where between uses; the executor brings it to where ops work.
        machine = plain.machine.with_reach("all")
        return MeasuredMapping(plain.program, machine, evaluator, repeats=asked.repeats, warmups=0)
    return MeasuredOffload(
        plain.program, plain.machine, evaluator, repeats=asked.repeats, warmups=0, **options_of(plain)
    )
