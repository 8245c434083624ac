"""What modules and those who use them do beside a plain call: numbers of Python, shared memory, gradients of their own."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fit_cases import WIDTH, Stack, fitted, gradients, pair, rows, same, step  # noqa: E402
from loadmaster.errors import LoadmasterError  # noqa: E402

# Dynamo looks at `.grad` of every tensor that it meets.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_module_that_has_another_ones_attributes_is_called_as_itself() -> None:
    """As libraries make one with weights of its own (higher): it was the fitted one that was called."""
    model = fitted(Stack(2), rows())
    other = Stack.__new__(Stack)
    vars(other).update(vars(model))
    vars(other)["_modules"] = {**model._modules, "layers": nn.ModuleList([nn.Linear(WIDTH, WIDTH)])}
    plain = Stack(1)
    plain.layers = other.layers
    assert same(other(rows()), plain(rows())) and not same(other(rows()), model(rows()))


class Drawing(Stack):
    """Numbers that Python draws come into the graph from outside."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * random.uniform(0, 1) + random.randint(0, 5)


@pytest.mark.parametrize("training", [False, True])
def test_numbers_that_python_draws(training: bool) -> None:
    plain, model = pair(lambda: Drawing(2), rows(), training=training)
    for model_of in (plain, model):
        random.seed(0)
        results = [step(model_of, rows(seed=i)) if training else model_of(rows(seed=i)) for i in range(4)]
        model_of.results = [*results, random.random()]
    assert same(plain.results, model.results) and same(gradients(plain), gradients(model))


class WritingOver(Stack):
    """Writes over its second input before it reads its first."""

    def forward(self, x: Any, y: Any) -> Any:
        y.mul_(2)
        return super().forward(x) + y.sum()


def test_inputs_that_share_memory_in_a_later_call() -> None:
    """PyTorch compiles for inputs that are apart, and does not see that they are not any more."""
    plain, model = pair(lambda: WritingOver(2), rows(8), rows(2), training=True)
    for share in (False, True, False):
        for each in (plain, model):
            x = rows(8)
            each.results = each(x, x[2:4] if share else rows(2)), x
        assert same(plain.results, model.results)


class Forces(Stack):
    """An energy, and its slope by the places of atoms."""

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        energy = super().forward(x).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return energy, -slope


def test_a_module_that_takes_gradients_in_evaluation() -> None:
    """Its trial was made without gradients, and failed."""
    plain, model = pair(lambda: Forces(2), rows())
    assert same(plain(rows(seed=2)), model(rows(seed=2)))


def test_a_module_that_fails_says_so_once_it_was_tried_with_gradients_as_well() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fitted(Forces(2).eval(), torch.zeros(2, 3))


def penalty(model: Any) -> None:
    x = rows().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum().backward()


def step_within(model: Any) -> None:
    own = dict(model.named_parameters())
    loss = torch.func.functional_call(model, own, (rows(),)).square().mean()
    slopes = torch.autograd.grad(loss, tuple(own.values()), create_graph=True)
    moved = {name: each - slope for (name, each), slope in zip(own.items(), slopes, strict=True)}
    torch.func.functional_call(model, moved, (rows(),)).sum().backward()


@pytest.mark.parametrize("ask", [penalty, step_within])
def test_gradients_of_gradients_are_refused_by_name(ask: Callable[[Any], None]) -> None:
    model = fitted(Stack(2).train(), rows())
    with pytest.raises(LoadmasterError, match="'Stack' is asked for gradients of its gradients"):
        ask(model)
    model.zero_grad()
    plain = copy.deepcopy(model)
    step(model, rows())
    step(plain, rows())
    assert same(gradients(plain), gradients(model))


class Heads(nn.Module):
    """Two heads of one body, each with layers of its own."""

    def __init__(self, *, broken: bool) -> None:
        super().__init__()
        self.body, self.between, self.one, self.other = Stack(1), Stack(1), Stack(1), Stack(1)
        self.broken = broken

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        between = self.between(x)
        if self.broken:
            torch._dynamo.graph_break()
        return self.one(x), self.other(between)


@pytest.mark.parametrize("broken", [False, True])
def test_a_head_that_no_loss_depends_on_is_not_stepped(broken: bool) -> None:
    """Zeros are no gradient: with them, an optimizer goes on with its momentum and lets weights decay."""
    plain, model = pair(lambda: Heads(broken=broken), rows(), training=True)
    for each in (plain, model):
        optimizer = torch.optim.AdamW(each.parameters(), 1e-2, weight_decay=0.5)
        each.given = []
        for i in range(4):
            optimizer.zero_grad()
            each(rows(seed=i))[i % 2].square().mean().backward()
            each.given.append([p.grad is not None for p in each.parameters()])
            optimizer.step()
    assert plain.given == model.given and not all(model.given[0])
    assert same(plain.state_dict(), model.state_dict())


class Learning(Stack):
    """Makes its own backward pass."""

    def forward(self, x: Any) -> Any:
        loss = super().forward(x).square().mean()
        loss.backward()
        return loss.detach()


@pytest.mark.parametrize("there", [False, True])
def test_gradients_that_a_module_makes_itself_are_there_once(there: bool) -> None:
    def make() -> Any:
        model = Learning(2)
        if there:
            Stack.forward(model, rows(seed=7)).sum().backward()
        return model

    plain = make().train()
    model = copy.deepcopy(plain)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        other.grad = None if one.grad is None else one.grad.clone()
    fitted(model, rows())
    assert same(plain(rows()), model(rows())) and same(gradients(plain), gradients(model))
