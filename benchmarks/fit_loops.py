"""Small training loops for `fit_sweep.py --catalogue loops`: what people write around a model.

    def distil(fit: Fit) -> Values: ...

Each makes its models, hands them to `fit` (which is `loadmaster.fit`, or gives the module back as it is), trains for
twenty to fifty steps, and tells its losses and what else should be the same. Loops of packages and plain ones. They were
written down before the first of them was tried with `fit`.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.fit_models import library

Fit = Callable[..., Any]
"""`fit(model, *example_inputs)`: the model, fitted."""

Values = dict[str, Tensor]
Loop = Callable[[Fit], Values]


def mlp(*sizes: int, norm: bool = False, last: nn.Module | None = None) -> nn.Sequential:
    """Linear layers with something between them."""
    layers: list[nn.Module] = []
    for i, (one, other) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(one, other))
        if i < len(sizes) - 2:
            layers += [nn.BatchNorm1d(other)] if norm else []
            layers.append(nn.LeakyReLU(0.2))
    return nn.Sequential(*layers, *([last] if last is not None else []))


def batches(count: int, *shape: int, seed: int = 5) -> Iterator[Tensor]:
    """Batches of noise; the generator is one of its own."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(*shape, generator=generator)


def run_loop(loop: Loop, fit: Fit) -> Values:
    """A loop, from the same random numbers each time."""
    random.seed(0)
    importlib.import_module("numpy").random.seed(0)
    torch.manual_seed(0)
    return loop(fit)


def told(losses: list[Any], **models: nn.Module) -> Values:
    """The loss curve, and what became of the models."""
    found = {"output/losses": torch.tensor([float(each) for each in losses], dtype=torch.float64)}
    for name, model in models.items():
        found |= {f"weight/{name}.{at}": each.detach().clone() for at, each in model.named_parameters()}
        found |= {f"buffer/{name}.{at}": each.detach().clone() for at, each in model.named_buffers()}
    return found


# Two models, two optimizers.


def gan(fit: Fit) -> Values:
    """A generator and a discriminator that see each other's gradients, with batch norms."""
    g = fit(mlp(16, 64, 64, 32, norm=True, last=nn.Tanh()), torch.randn(32, 16))
    d = fit(mlp(32, 64, 64, 1), torch.randn(32, 32))
    to_g, to_d = (torch.optim.Adam(each.parameters(), 2e-4, betas=(0.5, 0.999)) for each in (g, d))
    losses, ones, zeros = [], torch.ones(32, 1), torch.zeros(32, 1)
    for real in batches(30, 32, 32):
        fake = g(torch.randn(32, 16))
        to_d.zero_grad()
        loss = F.binary_cross_entropy_with_logits(d(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(d(fake.detach()), zeros)
        loss.backward()
        to_d.step()
        to_g.zero_grad()
        loss_g = F.binary_cross_entropy_with_logits(d(fake), ones)
        loss_g.backward()
        to_g.step()
        losses += [loss.item(), loss_g.item()]
    return told(losses, g=g, d=d)


def spectral_gan(fit: Fit) -> Values:
    """A discriminator with spectral norms of both kinds; its weights are frozen in the generator's step."""
    old, new = nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm
    critic = nn.Sequential(old(nn.Linear(32, 64)), nn.LeakyReLU(0.2), new(nn.Linear(64, 1)))
    g, d = fit(mlp(16, 64, 32), torch.randn(32, 16)), fit(critic, torch.randn(32, 32))
    to_g, to_d = torch.optim.RMSprop(g.parameters(), 1e-3), torch.optim.RMSprop(d.parameters(), 1e-3)
    losses = []
    for real in batches(25, 32, 32):
        d.requires_grad_(True)
        to_d.zero_grad()
        with torch.no_grad():
            fake = g(torch.randn(32, 16))
        loss = F.relu(1 - d(real)).mean() + F.relu(1 + d(fake)).mean()
        loss.backward()
        to_d.step()
        d.requires_grad_(False)
        to_g.zero_grad()
        loss_g = -d(g(torch.randn(32, 16))).mean()
        loss_g.backward()
        to_g.step()
        losses += [loss.item(), loss_g.item()]
    return told(losses, g=g, d=d)


def gradient_penalty(fit: Fit) -> Values:
    """WGAN-GP: gradients of gradients of the critic, which `fit` says that it refuses."""
    critic = fit(mlp(32, 64, 1), torch.randn(16, 32))
    optimizer, losses = torch.optim.Adam(critic.parameters(), 1e-3), []
    for real in batches(20, 16, 32):
        mixed = real.clone().requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean() - critic(real).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, critic=critic)


def penalty_of_another(fit: Fit) -> Values:
    """WGAN-GP with an ordinary critic and a fitted generator."""
    critic, g = mlp(32, 64, 1), fit(mlp(16, 64, 32), torch.randn(16, 16))
    to_c, to_g, losses = torch.optim.Adam(critic.parameters()), torch.optim.Adam(g.parameters()), []
    for real in batches(20, 16, 32):
        fake = g(torch.randn(16, 16))
        mixed = (0.5 * real + 0.5 * fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean() - critic(real).mean() + critic(fake.detach()).mean()
        to_c.zero_grad()
        loss.backward()
        to_c.step()
        to_g.zero_grad()
        (-critic(fake).mean()).backward()
        to_g.step()
        losses.append(loss.item())
    return told(losses, g=g)


def distil(fit: Fit) -> Values:
    """A teacher in evaluation, a student, features of both caught by hooks."""
    teacher, student = mlp(32, 128, 64, 10).eval(), mlp(32, 48, 64, 10)
    caught: dict[str, Tensor] = {}
    for name, each in (("teacher", teacher), ("student", student)):
        each[3].register_forward_hook(lambda m, a, out, name=name: caught.__setitem__(name, out))
    teacher, student = fit(teacher, torch.randn(16, 32)), fit(student, torch.randn(16, 32))
    optimizer, losses = torch.optim.AdamW(student.parameters(), 1e-3), []
    for x in batches(25, 16, 32):
        with torch.no_grad():
            soft = teacher(x)
        out = student(x)
        loss = F.kl_div(out.log_softmax(-1), soft.softmax(-1), reduction="batchmean")
        size = min(caught["student"].shape[1], caught["teacher"].shape[1])
        loss = loss + F.mse_loss(caught["student"][:, :size], caught["teacher"][:, :size].detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, student=student, teacher=teacher)


def mean_teacher(fit: Fit) -> Values:
    """A teacher that is a moving average, written in place after every step, batch norms included."""
    student = mlp(32, 64, 64, 10, norm=True)
    teacher = copy.deepcopy(student).requires_grad_(False)
    student, teacher = fit(student, torch.randn(16, 32)), fit(teacher, torch.randn(16, 32))
    optimizer, losses = torch.optim.SGD(student.parameters(), 0.05, momentum=0.9), []
    for x in batches(30, 16, 32):
        with torch.no_grad():
            goal = teacher(x + 0.1 * torch.randn_like(x)).softmax(-1)
        loss = F.mse_loss(student(x).softmax(-1), goal) + F.cross_entropy(student(x), goal.argmax(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for one, other in zip(teacher.parameters(), student.parameters(), strict=True):
                one.mul_(0.9).add_(other, alpha=0.1)
        losses.append(loss.item())
    return told(losses, student=student, teacher=teacher)


class Queue(nn.Module):
    """MoCo: a key encoder that follows inside the call, and a queue with a pointer, both written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = mlp(32, 64, 16), mlp(32, 64, 16)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(16, 64), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def follow(self) -> None:
        """The key encoder's step."""
        for one, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
            one.data = one.data * 0.9 + other.data * 0.1

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def enqueue(self, keys: Tensor) -> None:
        """The oldest keys go."""
        at = int(self.pointer)
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % 64

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        query = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self.follow()
            key = F.normalize(self.key(other), dim=1)
        near = (query * key).sum(-1, keepdim=True)
        logits = torch.cat([near, query @ self.queue.clone().detach()], dim=1) / 0.1
        self.enqueue(key)
        return logits, torch.zeros(len(logits), dtype=torch.long)


def moco(fit: Fit) -> Values:
    """Momentum contrast as its authors wrote it."""
    model = fit(Queue(), torch.randn(16, 32), torch.randn(16, 32))
    optimizer, losses = torch.optim.SGD(model.query.parameters(), 0.1), []
    for x in batches(24, 16, 32):
        logits, labels = model(x, x + 0.1 * torch.randn_like(x))
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


class Prototypes(nn.Module):
    """Prototypes that follow their class inside the call, counts, and a cumulative batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = mlp(32, 64, 16), nn.BatchNorm1d(16, momentum=None)
        self.register_buffer("centres", torch.zeros(5, 16))
        self.register_buffer("seen", torch.zeros(5, dtype=torch.long))
        self.steps = 0

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.norm(self.body(x))
        if self.training:
            self.steps += 1
            with torch.no_grad():
                self.centres.index_copy_(0, labels[:1], x[:1].detach())
                self.centres[labels[-1]] = 0.5 * self.centres[labels[-1]] + 0.5 * x[-1]
                self.seen += torch.bincount(labels, minlength=5)
        return -torch.cdist(x, self.centres)


def prototypes(fit: Fit) -> Values:
    """Buffers that a call changes and reads, in both modes by turns."""
    model = fit(Prototypes(), torch.randn(16, 32), torch.randint(5, (16,)))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for i, x in enumerate(batches(24, 16, 32)):
        labels = torch.arange(16).add(i) % 5
        loss = F.cross_entropy(model(x, labels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if i % 4 == 3:
            model.eval()
            with torch.no_grad():
                losses.append(model(x, labels).mean().item())
            model.train()
    return told([*losses, model.steps], model=model)


# Gradients of inputs, of parts, several times.


def adversarial(fit: Fit) -> Values:
    """Attacks by projected gradients in evaluation, then a step on what they found."""
    model = fit(mlp(32, 64, 64, 5, norm=True), torch.randn(16, 32))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for i, x in enumerate(batches(20, 16, 32)):
        labels, moved = torch.arange(16).add(i) % 5, x.clone()
        model.eval()
        for _ in range(2):
            moved.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(moved), labels), moved)
            moved = (moved + 0.05 * slope.sign()).detach().clamp(-3, 3)
        model.train()
        loss = F.cross_entropy(model(moved), labels) + F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def input_alone(fit: Fit) -> Values:
    """Only the input is optimized, through a frozen model."""
    model = fit(mlp(32, 64, 10).eval().requires_grad_(False), torch.randn(4, 32, requires_grad=True))
    image = torch.randn(4, 32, requires_grad=True)
    optimizer, losses = torch.optim.Adam([image], 0.05), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(image.tanh()), torch.arange(4))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {**told(losses, model=model), "output/image": image.detach()}


class Heads(nn.Module):
    """One body, several heads, one of them a view of another's result."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = mlp(32, 64, 64), nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.body(x)
        one = self.one(x.relu())
        return {
            "one": one,
            "two": self.two(x),
            "first": one[:, :2],
            "features": x,
            "count": len(x),
            "none": None,
        }


def several_losses(fit: Fit) -> Values:
    """Losses one after another through one call, gradients of parts by `autograd.grad`, norms of each (GradNorm)."""
    model = fit(Heads(), torch.randn(16, 32))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for x in batches(20, 16, 32):
        out = model(x)
        one, two = out["one"].square().mean() + out["first"].mean(), (out["two"] - 1).square().mean()
        shared = model.body[-1].weight
        sizes = [torch.autograd.grad(each, shared, retain_graph=True)[0].norm() for each in (one, two)]
        optimizer.zero_grad()
        loss = one / sizes[0] + two / sizes[1]
        loss.backward()
        optimizer.step()
        losses += [loss.item(), *(each.item() for each in sizes)]
    return told(losses, model=model)


def surgery(fit: Fit) -> Values:
    """Each loss has a backward call of its own; conflicting gradients are projected (PCGrad)."""
    model = fit(Heads(), torch.randn(16, 32))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
    for x in batches(20, 16, 32):
        out, found = model(x), []
        for each in (out["one"].square().mean(), (out["two"] - 1).square().mean()):
            optimizer.zero_grad()
            each.backward(retain_graph=True)
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            losses.append(each.item())
        for p, a, b in zip(model.parameters(), *found, strict=True):
            a, b = (torch.zeros_like(p) if g is None else g for g in (a, b))
            dot = (a * b).sum()
            p.grad = a + b - (dot / b.square().sum().clamp(min=1e-9) * b if dot < 0 else 0)
        optimizer.step()
    return told(losses, model=model)


def accumulate(fit: Fit) -> Values:
    """Gradients of four batches, a scheduler, clipping, an evaluation and a checkpoint in between."""
    model = fit(mlp(32, 64, 64, 10, norm=True), torch.randn(8, 32))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler, losses = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=8), []
    kept = None
    for i, x in enumerate(batches(32, 8, 32)):
        loss = F.cross_entropy(model(x), torch.arange(8)) / 4
        loss.backward()
        losses.append(loss.item())
        if i % 4 == 3:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=i % 8 == 3)
        if i == 15:
            kept = copy.deepcopy(model.state_dict())
        if i == 27:
            model.load_state_dict(kept)
        if i % 8 == 7:
            model.eval()
            with torch.inference_mode():
                losses.append(model(x).sum())
            model.train()
    return told(losses, model=model)


def closure(fit: Fit) -> Values:
    """LBFGS calls the model as often as it likes."""
    model = fit(mlp(8, 16, 1, last=nn.Tanh()), torch.randn(32, 8))
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=6, line_search_fn="strong_wolfe")
    (x,), losses = batches(1, 32, 8), []

    def again() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :1].sin())
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(6):
        optimizer.step(again)
    return told(losses[:30], model=model)


def freezing(fit: Fit) -> Values:
    """Layers are unfrozen one by one, and a head is replaced."""
    model = mlp(32, 64, 64, 10)
    model.requires_grad_(False)
    model[4].requires_grad_(True)
    model, losses = fit(model, torch.randn(16, 32)), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for i, x in enumerate(batches(24, 16, 32)):
        if i == 6:
            model[2].requires_grad_(True)
        if i == 12:
            model[0].weight.requires_grad_(True)
        if i == 18:
            model[4] = nn.Linear(64, 12)
            optimizer = torch.optim.SGD(model.parameters(), 0.05)
        loss = F.cross_entropy(model(x), torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def soft_actor_critic(fit: Fit) -> Values:
    """Two critics and their targets, frozen in the actor's step, an entropy weight that learns."""
    actor = fit(mlp(8, 64, 4), torch.randn(32, 8))
    critics = [fit(mlp(10, 64, 1), torch.randn(32, 10)) for _ in range(2)]
    targets = [copy.deepcopy(each).requires_grad_(False) for each in critics]
    heat = torch.zeros(1, requires_grad=True)
    to_actor = torch.optim.Adam(actor.parameters(), 3e-3)
    to_critics = torch.optim.Adam([p for each in critics for p in each.parameters()], 3e-3)
    to_heat, losses = torch.optim.Adam([heat], 3e-3), []

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = actor(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, scale.clamp(-5, 2).exp())
        drawn = normal.rsample()
        return drawn.tanh(), (normal.log_prob(drawn) - 2 * (0.69 - drawn - F.softplus(-2 * drawn))).sum(-1)

    for state in batches(25, 32, 8):
        with torch.no_grad():
            action, log_prob = act(state + 0.1)
            least = torch.min(*(each(torch.cat([state, action], -1)) for each in targets))
            goal = state[:, :1] + 0.9 * (least - heat.exp() * log_prob[:, None])
        given = torch.cat([state, state[:, 2:4].tanh()], -1)
        loss = sum(F.mse_loss(each(given), goal) for each in critics)
        to_critics.zero_grad()
        loss.backward()
        to_critics.step()
        for each in critics:
            each.requires_grad_(False)
        action, log_prob = act(state)
        least = torch.min(*(each(torch.cat([state, action], -1)) for each in critics))
        policy_loss = (heat.exp().detach() * log_prob[:, None] - least).mean()
        to_actor.zero_grad()
        policy_loss.backward()
        to_actor.step()
        for each in critics:
            each.requires_grad_(True)
        heat_loss = -(heat * (log_prob.detach() - 2).mean())
        to_heat.zero_grad()
        heat_loss.backward()
        to_heat.step()
        with torch.no_grad():
            for one, other in zip(targets, critics, strict=True):
                for p, q in zip(one.parameters(), other.parameters(), strict=True):
                    p.lerp_(q, 0.05)
        losses += [loss.item(), policy_loss.item(), heat_loss.item()]
    return told(losses, actor=actor, one=critics[0], target=targets[1])


# States and random numbers.


class Cell(nn.Module):
    """A recurrent layer whose state its caller keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(32, 24), nn.LSTM(24, 48, 2), nn.Linear(48, 32)
        self.head.weight = nn.Parameter(torch.randn(32, 48) * 0.1)

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        x, state = self.cell(self.words(ids), state)
        return self.head(x), state


def truncated(fit: Fit) -> Values:
    """Truncated backpropagation: the state goes on, its gradients do not."""
    model = fit(Cell(), torch.randint(32, (7, 4)))
    optimizer, losses, state = torch.optim.Adam(model.parameters(), 1e-2), [], None
    for x in batches(25, 8, 4):
        ids = (x.abs() * 20).long() % 32
        out, state = model(ids[:-1], state)
        loss = F.cross_entropy(out.flatten(0, 1), ids[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = tuple(each.detach() for each in state)
        losses.append(loss.item())
    return told(losses, model=model)


class Remembering(nn.Module):
    """A layer that keeps its own state, as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 32)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros(len(x), 32) if self.state is None else self.state
        self.state = torch.tanh(self.one(x) + self.two(before))
        return self.state


def stateful(fit: Fit) -> Values:
    """A state in the module, over three calls, then one backward call; detached between sequences."""
    model = fit(Remembering(), torch.randn(8, 16))
    losses = [0.0 if model.state is None else 1.0]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for x in batches(20, 3, 8, 16):
        out = [model(each) for each in x]
        loss = F.mse_loss(torch.stack(out), x.repeat(1, 1, 2).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.state = model.state.detach()
        losses.append(loss.item())
    return {**told(losses, model=model), "output/state": model.state}


class Variational(nn.Module):
    """Draws in its middle, and masks at random."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.drop = mlp(32, 64, 16), mlp(8, 64, 32), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, scale = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * scale.mul(0.5).exp()
        kept = torch.bernoulli(torch.full_like(x, 0.9)) + torch.rand(()) * 0
        hard = F.gumbel_softmax(drawn[:, :4], hard=True)
        return self.drop(self.decoder(drawn)) * kept + hard.sum(-1, keepdim=True), mean, scale


def variational(fit: Fit) -> Values:
    """Random numbers inside and outside of the model, from one generator."""
    model = fit(Variational(), torch.randn(16, 32))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for x in batches(25, 16, 32):
        out, mean, scale = model(x + 0.1 * torch.randn_like(x))
        loss = F.mse_loss(out, x) - 0.05 * (1 + scale - mean.square() - scale.exp()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {**told(losses, model=model), "output/next": torch.rand(4)}


class Careless(nn.Module):
    """Writes into what it is given, and hands out what is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(16, 16), nn.Parameter(torch.ones(16))
        self.register_buffer("kept", torch.zeros(4, 16))

    def forward(self, x: Tensor, into: Tensor) -> tuple[Tensor, ...]:
        x[:, 0] = 1.0
        x.mul_(0.5)
        self.kept[1:3].add_(x[:2].detach())
        self.kept.T[0] += 1
        into.copy_(self.linear(x).detach())
        return self.linear(x) * self.scale, x, x[1:], self.kept, into[:, ::2], self.kept[0]


def careless(fit: Fit) -> Values:
    """Inputs, buffers and results that are one another's memory."""
    model = fit(Careless(), torch.randn(4, 16), torch.zeros(4, 16))
    optimizer, losses, found = torch.optim.SGD(model.parameters(), 0.1), [], {}
    for i, x in enumerate(batches(20, 4, 16)):
        into, wide = torch.zeros(4, 16), torch.randn(16, 4, generator=torch.Generator().manual_seed(i)).T
        given = wide if i % 2 else x
        out, same, part, kept, strided, row = model(given, into)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        parts = (given, into, same, part, kept, strided, row)
        losses += [loss.item(), *(each.detach().sum().item() for each in parts)]
        with torch.no_grad():
            model.kept.mul_(0.9)
            kept.add_(0.01)
        found[f"output/{i}"] = model.kept.clone()
    return {**told(losses, model=model), **found}


def autocast(fit: Fit) -> Values:
    """Half precision around calls, float32 weights, a type that differs between calls."""
    model = fit(mlp(32, 64, 64, 10, norm=True), torch.randn(16, 32))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
    for i, x in enumerate(batches(20, 16, 32)):
        with torch.autocast("cpu", torch.bfloat16, enabled=i % 3 != 2):
            out = model(x)
            loss = F.cross_entropy(out, torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += [loss.item(), float(out.dtype == torch.bfloat16)]
    return told(losses, model=model)


class Rounded(torch.autograd.Function):
    """A straight-through estimator with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.bits = 4
        return torch.round(x / scale).clamp_(-8, 7) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        inside = (x / scale).abs() <= 2 ** (ctx.bits - 1)
        return grad * inside, (grad * (torch.round(x / scale) - x / scale)).sum()


class RoundedLinear(nn.Linear):
    """Learned step sizes, observed once at the first call."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.step = nn.Parameter(torch.ones(()))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            with torch.no_grad():
                self.step.copy_(self.weight.abs().mean() / 2)
                self.ready.fill_(True)
        return F.linear(x, Rounded.apply(self.weight, self.step), self.bias)


def learned_steps(fit: Fit) -> Values:
    """Quantization-aware training with a Function and an initialization by the data (LSQ)."""
    model = nn.Sequential(RoundedLinear(32, 64), nn.ReLU(), RoundedLinear(64, 10))
    model = fit(model, torch.randn(16, 32))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for x in batches(25, 16, 32):
        loss = F.cross_entropy(model(x), torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def observed(fit: Fit) -> Values:
    """torch.ao's quantization-aware training: observers and fake quantization that are switched on the way."""
    ao = library("torch.ao.quantization")
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).train()
    model.qconfig = ao.get_default_qat_qconfig("fbgemm")
    model = fit(ao.prepare_qat(model), torch.randn(16, 32))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
    for i, x in enumerate(batches(24, 16, 32)):
        if i == 12:
            model.apply(ao.disable_observer)
        loss = F.cross_entropy(model(x), torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def weight_norms(fit: Fit) -> Values:
    """Weight norms of both kinds, removed at the end; a tied decoder; parametrized orthogonally."""
    model = nn.Sequential(
        nn.utils.weight_norm(nn.Linear(32, 64)),
        nn.Tanh(),
        nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)),
        nn.Tanh(),
        nn.utils.parametrizations.orthogonal(nn.Linear(64, 64)),
        nn.Linear(64, 32),
    )
    model[5].weight = nn.Parameter(model[0].weight_v.detach().T.clone())
    model = fit(model, torch.randn(16, 32))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for i, x in enumerate(batches(24, 16, 32)):
        if i == 16:
            nn.utils.remove_weight_norm(model[0])
            nn.utils.parametrize.remove_parametrizations(model[2], "weight")
            optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def averaged(fit: Fit) -> Values:
    """Weights are averaged, then batch norms are made anew for them."""
    model = fit(mlp(32, 64, 10, norm=True), torch.randn(16, 32))
    mean = torch.optim.swa_utils.AveragedModel(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for i, x in enumerate(batches(24, 16, 32)):
        loss = F.cross_entropy(model(x), torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if i > 12:
            mean.update_parameters(model)
    torch.optim.swa_utils.update_bn(list(batches(4, 16, 32)), mean)
    mean.eval()
    with torch.no_grad():
        losses.append(mean(x).sum())
    return told(losses, model=model, mean=mean)


def functional(fit: Fit) -> Values:
    """Model-agnostic meta-learning by functional_call: an inner step that the outer one sees."""
    model = fit(mlp(8, 32, 1), torch.randn(16, 8))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for x in batches(20, 2, 16, 8):
        inner = dict(model.named_parameters())
        loss = F.mse_loss(torch.func.functional_call(model, inner, (x[0],)), x[0].sum(-1, keepdim=True).sin())
        slopes = torch.autograd.grad(loss, tuple(inner.values()), create_graph=True)
        moved = {name: p - 0.1 * s for (name, p), s in zip(inner.items(), slopes, strict=True)}
        outer = F.mse_loss(
            torch.func.functional_call(model, moved, (x[1],)), x[1].sum(-1, keepdim=True).sin()
        )
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
        losses += [loss.item(), outer.item()]
    return told(losses, model=model)


# Loops of packages.


def higher_maml(fit: Fit) -> Values:
    """The inner loop of higher."""
    higher = library("higher")
    model = fit(mlp(8, 32, 1), torch.randn(16, 8))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for x in batches(20, 2, 16, 8):
        inner = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.zero_grad()
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (moved, step):
            step.step(F.mse_loss(moved(x[0]), x[0].sum(-1, keepdim=True).sin()))
            loss = F.mse_loss(moved(x[1]), x[1].sum(-1, keepdim=True).sin())
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def world() -> Any:
    """A world of four numbers that two actions move."""
    gymnasium = library("gymnasium")
    numpy = importlib.import_module("numpy")

    class World(gymnasium.Env):  # type: ignore[name-defined]
        observation_space = gymnasium.spaces.Box(-10, 10, (4,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.at, self.time = numpy.array([0.1, -0.2, 0.3, 0.0], numpy.float32), 0
            return self.at, {}

        def step(self, action: Any) -> Any:
            self.time += 1
            moved = self.at + (0.1 if action else -0.1)
            self.at = numpy.roll(moved, 1).astype(numpy.float32)
            return self.at, float(-abs(self.at).sum()), False, self.time >= 20, {}

    return World()


def stable_dqn(fit: Fit) -> Values:
    """DQN of stable-baselines3: both nets fitted."""
    agents = library("stable_baselines3")
    agent = agents.DQN(
        "MlpPolicy",
        world(),
        learning_starts=20,
        train_freq=4,
        batch_size=16,
        target_update_interval=40,
        tau=0.5,
        seed=3,
        device="cpu",
    )
    fit(agent.q_net, torch.randn(16, 4))
    fit(agent.q_net_target, torch.randn(16, 4))
    agent.learn(160)
    numbers = [agent.replay_buffer.actions.sum(), agent.replay_buffer.rewards.sum()]
    return told(numbers, q=agent.q_net, target=agent.q_net_target)


def stable_ppo(fit: Fit) -> Values:
    """PPO of stable-baselines3: the part of its policy that is called as a module."""
    agents = library("stable_baselines3")
    agent = agents.PPO("MlpPolicy", world(), n_steps=64, batch_size=16, n_epochs=3, seed=3, device="cpu")
    fit(agent.policy.mlp_extractor, torch.randn(16, 4))
    fit(agent.policy.value_net, torch.randn(16, 64))
    agent.learn(128)
    return told([agent.rollout_buffer.rewards.sum()], policy=agent.policy)


def tensordict_q(fit: Fit) -> Values:
    """A net of torchrl that is given TensorDicts, and writes into them."""
    from benchmarks.fit_more_packages import q_net

    tensordict = library("tensordict").TensorDict
    given = tensordict({"observation": torch.randn(16, 12)}, batch_size=[16])
    model = fit(q_net(), given)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for x in batches(20, 16, 12):
        out = model(tensordict({"observation": x}, batch_size=[16]))
        loss = F.mse_loss(out["chosen_action_value"], x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += [loss.item(), out["action"].float().argmax(-1).sum().item()]
    return told(losses, model=model)


def tianshou_numpy(fit: Fit) -> Values:
    """A net of tianshou, which takes observations as arrays."""
    net = library("tianshou.utils.net.common").Net
    given = torch.randn(16, 12).numpy()
    model = fit(net(state_shape=12, action_shape=4, hidden_sizes=(64, 64)), given)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for x in batches(20, 16, 12):
        out, state = model(x.numpy())
        loss = F.mse_loss(out, x[:, :4]) + (0.0 if state is None else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def byol_follows(fit: Fit) -> Values:
    """byol-pytorch: the moving average is made after every step."""
    from benchmarks.fit_more_packages import byol

    model = fit(byol(), torch.randn(4, 3, 32, 32))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for x in batches(20, 4, 3, 32, 32):
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_moving_average()
        losses.append(loss.item())
    return told(losses, model=model)


def metric_learning(fit: Fit) -> Values:
    """Triplets of pytorch-metric-learning, mined from each batch."""
    losses_of, miners = (library(f"pytorch_metric_learning.{each}") for each in ("losses", "miners"))
    model, proxies = fit(mlp(32, 64, 16), torch.randn(24, 32)), losses_of.ProxyAnchorLoss(6, 16)
    triplets, miner = losses_of.TripletMarginLoss(), miners.MultiSimilarityMiner()
    optimizer = torch.optim.Adam([*model.parameters(), *proxies.parameters()], 1e-3)
    losses, labels = [], torch.arange(24) % 6
    for x in batches(25, 24, 32):
        out = model(x)
        loss = triplets(out, labels, miner(out, labels)) + 0.1 * proxies(out, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model, proxies=proxies)


def lightning_gan(fit: Fit) -> Values:
    """Lightning with manual optimization of two models."""
    lightning = library("lightning")
    g, d = fit(mlp(16, 64, 32), torch.randn(16, 16)), fit(mlp(32, 64, 1), torch.randn(16, 32))
    losses: list[float] = []

    class Gan(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.g, self.d, self.automatic_optimization = g, d, False

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(each.parameters(), 1e-3) for each in (self.g, self.d)]

        def training_step(self, real: Tensor, index: int) -> None:
            to_g, to_d = self.optimizers()
            for optimizer in (to_g, to_d):
                self.toggle_optimizer(optimizer)
                fake = self.g(torch.randn(16, 16))
                loss = F.softplus(-self.d(fake)).mean()
                if optimizer is to_d:
                    loss = F.softplus(self.d(fake.detach())).mean() + F.softplus(-self.d(real)).mean()
                self.manual_backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)
                losses.append(loss.item())

    data = torch.utils.data.DataLoader(list(batches(20, 16, 32)), batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, barebones=True
    )
    trainer.fit(Gan(), data)
    return told(losses, g=g, d=d)


def ignite_engine(fit: Fit) -> Values:
    """Trainer and evaluator of ignite, by turns."""
    engine, metrics = library("ignite.engine"), library("ignite.metrics")
    model, losses = fit(mlp(32, 64, 10, norm=True), torch.randn(16, 32)), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    data = [(x, torch.arange(16) % 10) for x in batches(8, 16, 32)]
    trainer = engine.create_supervised_trainer(
        model, optimizer, F.cross_entropy, gradient_accumulation_steps=2
    )
    evaluator = engine.create_supervised_evaluator(model, {"loss": metrics.Loss(F.cross_entropy)})

    @trainer.on(engine.Events.ITERATION_COMPLETED)  # type: ignore[untyped-decorator]
    def keep(engine: Any) -> None:
        losses.append(engine.state.output)

    @trainer.on(engine.Events.EPOCH_COMPLETED)  # type: ignore[untyped-decorator]
    def evaluate(_: Any) -> None:
        losses.append(evaluator.run(data).metrics["loss"])

    trainer.run(data, max_epochs=4)
    return told(losses, model=model)


def skorch_classifier(fit: Fit) -> Values:
    """skorch is given the fitted module."""
    skorch, numpy = library("skorch"), importlib.import_module("numpy")
    model = fit(mlp(32, 64, 10), torch.randn(16, 32))
    net = skorch.NeuralNetClassifier(
        model,
        criterion=nn.CrossEntropyLoss,
        lr=0.05,
        max_epochs=4,
        batch_size=16,
        verbose=0,
        iterator_train__shuffle=False,
        train_split=None,
    )
    x = torch.cat(list(batches(6, 16, 32))).numpy()
    net.fit(x, numpy.arange(96) % 10)
    losses = [*net.history[:, "train_loss"], float(net.predict(x).sum())]
    return told(losses, model=net.module_)


def fastai_learner(fit: Fit) -> Values:
    """fastai's Learner, whose tensors are of classes of its own."""
    fastai = library("fastai.basics")
    model = fit(mlp(32, 64, 10, norm=True), torch.randn(16, 32))
    data = [(x, i % 10) for i, x in enumerate(torch.cat(list(batches(4, 16, 32))))]
    loaders = fastai.DataLoaders(
        fastai.DataLoader(data, batch_size=16), fastai.DataLoader(data, batch_size=16), device="cpu"
    )
    learner = fastai.Learner(loaders, model, loss_func=nn.CrossEntropyLoss(), opt_func=fastai.SGD, cbs=[])
    with learner.no_logging():
        learner.fit(5, 0.05)
    return told([float(each) for each in learner.recorder.losses], model=model)


def private(fit: Fit) -> Values:
    """opacus: gradients of each sample, which its hooks take from a fitted model."""
    opacus = library("opacus")
    inner = fit(mlp(32, 64, 10), torch.randn(16, 32))
    model = opacus.GradSampleModule(inner)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
    for x in batches(20, 16, 32):
        loss = F.cross_entropy(model(x), torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        for p in model.parameters():
            sizes = p.grad_sample.flatten(1).norm(dim=1)
            p.grad = torch.einsum("n,n...->...", (1 / sizes.clamp(min=1)), p.grad_sample) / 16
            p.grad_sample = None
        optimizer.step()
    return told(losses, model=model)


def attributed(fit: Fit) -> Values:
    """captum's attributions, by gradients and by hooks, of a fitted model between steps."""
    attr = library("captum.attr")
    model = fit(mlp(32, 64, 64, 5), torch.randn(200, 32)).eval()  # steps of an integral are one batch
    found = {}
    for i, x in enumerate(batches(3, 4, 32)):
        for name in ("IntegratedGradients", "Saliency", "DeepLift", "InputXGradient"):
            found[f"output/{name}-{i}"] = getattr(attr, name)(model).attribute(x, target=1).detach()
        layer = attr.LayerGradCam(model, model[2])
        found[f"output/cam-{i}"] = layer.attribute(x, target=2).detach()
    return found


def riemannian(fit: Fit) -> Values:
    """geoopt's optimizer on parameters of a class of its own."""
    from benchmarks.fit_more_packages import Hyperbolic

    model = fit(Hyperbolic(), torch.arange(16), torch.arange(16))
    optimizer, losses = library("geoopt").optim.RiemannianAdam(model.parameters(), 1e-2), []
    for i in range(25):
        one, other = torch.arange(16).add(i) % 64, torch.arange(16).mul(3).add(i + 1) % 64
        loss = (model(one, other) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def spikes_of_state(fit: Fit) -> Values:
    """snntorch with states that the neurons keep, reset before every sequence."""
    snn, utils = library("snntorch"), library("snntorch.utils")
    model = nn.Sequential(
        nn.Linear(16, 64),
        snn.Leaky(beta=0.9, init_hidden=True),
        nn.Linear(64, 8),
        snn.Leaky(beta=0.8, init_hidden=True, output=True),
    )
    model = fit(model, torch.randn(16, 16).abs())
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for x in batches(20, 4, 16, 16):
        utils.reset(model)
        out = [model(each.abs())[1] for each in x]
        loss = F.cross_entropy(torch.stack(out).sum(0), torch.arange(16) % 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def spikingjelly_steps(fit: Fit) -> Values:
    """spikingjelly step by step, its neurons' memories between."""
    neuron, functional = (
        library(f"spikingjelly.activation_based.{each}") for each in ("neuron", "functional")
    )
    model = nn.Sequential(nn.Linear(16, 64), neuron.LIFNode(), nn.Linear(64, 8), neuron.IFNode())
    model = fit(model, torch.randn(16, 16))
    functional.reset_net(model)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for x in batches(20, 4, 16, 16):
        rates = sum(model(each) for each in x) / 4
        loss = F.mse_loss(rates, F.one_hot(torch.arange(16) % 8, 8).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        functional.reset_net(model)
        losses.append(loss.item())
    return told(losses, model=model)


def lora_merges(fit: Fit) -> Values:
    """loralib merges its weights in place whenever the mode changes."""
    from benchmarks.fit_more_packages import lora_net

    model = fit(lora_net(), torch.randint(64, (4, 16)))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for i, x in enumerate(batches(24, 4, 16)):
        ids = (x.abs() * 20).long() % 64
        loss = model(ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if i % 6 == 5:
            model.eval()
            with torch.no_grad():
                losses.append(model(ids).sum())
            model.train()
    return told(losses, model=model)


def flow_matching(fit: Fit) -> Values:
    """torchcfm's optimal-transport flow matching."""
    matcher = library("torchcfm.conditional_flow_matching").ExactOptimalTransportConditionalFlowMatcher(0.1)
    model = fit(mlp(5, 64, 64, 4), torch.randn(16, 5))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    importlib.import_module("numpy").random.seed(0)  # what is imported first draws
    for x in batches(25, 16, 4):
        t, at, goal = matcher.sample_location_and_conditional_flow(torch.randn_like(x), x)
        loss = F.mse_loss(model(torch.cat([at, t[:, None]], -1)), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def bayesian(fit: Fit) -> Values:
    """bayesian-torch: a weight is drawn anew in every call."""
    from benchmarks.fit_more_packages import Bayesian

    model = fit(Bayesian(), torch.randn(8, 3, 16, 16))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for x in batches(20, 8, 3, 16, 16):
        out, far = model(x)
        loss = F.cross_entropy(out, torch.arange(8)) + far / 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, model=model)


def neural_ode(fit: Fit) -> Values:
    """torchsde's adjoint, whose net is called by a solver: the field itself is fitted."""
    from benchmarks.fit_more_packages import Drift

    sde, sdeint = Drift(), library("torchsde").sdeint_adjoint
    sde.mu, sde.sigma = fit(sde.mu, torch.randn(8, 4)), fit(sde.sigma, torch.randn(8, 4))
    optimizer, losses = torch.optim.Adam(sde.parameters(), 1e-2), []
    for i, x in enumerate(batches(8, 8, 4)):
        motion = library("torchsde").BrownianInterval(0.0, 1.0, size=(8, 4), entropy=i)
        sde.sde_type = "stratonovich"
        out = sdeint(sde, x, torch.linspace(0, 1, 2), bm=motion, dt=0.25, method="midpoint")
        loss = out[-1].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return told(losses, sde=sde)


def batch_gradients(fit: Fit) -> Values:
    """backpack's extensions of a fitted model: variances of gradients."""
    backpack, extensions = library("backpack"), library("backpack.extensions")
    model = backpack.extend(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)))
    model, measure = fit(model, torch.randn(16, 32)), backpack.extend(nn.CrossEntropyLoss())
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
    for x in batches(20, 16, 32):
        loss = measure(model(x), torch.arange(16) % 10)
        optimizer.zero_grad()
        with backpack.backpack(extensions.Variance()):
            loss.backward()
        losses += [loss.item(), sum(p.variance.sum().item() for p in model.parameters())]
        optimizer.step()
    return told(losses, model=model)


def keras_training(fit: Fit) -> Values:
    """keras's own `fit` of a model that ours has fitted before."""
    from benchmarks.fit_more_packages import keras_net

    keras = library("keras")
    keras.utils.set_random_seed(0)
    model = keras_net()
    model = fit(model, torch.randn(8, 16, 16, 3))
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    x = torch.cat(list(batches(6, 8, 16, 16, 3)))
    history = model.fit(
        x.numpy(), x.flatten(1)[:, :10].numpy(), batch_size=8, epochs=4, shuffle=False, verbose=0
    )
    weights = {f"weight/{i}": each.detach().clone() for i, each in enumerate(model.parameters())}
    return told(history.history["loss"]) | weights


def moving_average(fit: Fit) -> Values:
    """ema-pytorch around a fitted model."""
    model = fit(mlp(32, 64, 10, norm=True), torch.randn(16, 32))
    mean = library("ema_pytorch").EMA(model, beta=0.9, update_every=2, update_after_step=4)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for i, x in enumerate(batches(24, 16, 32)):
        loss = F.cross_entropy(model(x), torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update()
        losses.append(loss.item())
        if i % 6 == 5:
            mean.eval()
            with torch.no_grad():
                losses.append(mean(x).sum())
    return told(losses, model=model, mean=mean.ema_model)


PLAIN = (
    gan,
    spectral_gan,
    gradient_penalty,
    penalty_of_another,
    distil,
    mean_teacher,
    moco,
    prototypes,
    adversarial,
    input_alone,
    several_losses,
    surgery,
    accumulate,
    closure,
    freezing,
    soft_actor_critic,
    truncated,
    stateful,
    variational,
    careless,
    autocast,
    learned_steps,
    observed,
    weight_norms,
    averaged,
    functional,
)
PACKAGED = {
    "higher": higher_maml,
    "stable_baselines3-dqn": stable_dqn,
    "stable_baselines3-ppo": stable_ppo,
    "tensordict": tensordict_q,
    "tianshou": tianshou_numpy,
    "byol_pytorch": byol_follows,
    "pytorch_metric_learning": metric_learning,
    "lightning": lightning_gan,
    "ignite": ignite_engine,
    "skorch": skorch_classifier,
    "fastai": fastai_learner,
    "opacus": private,
    "captum": attributed,
    "geoopt": riemannian,
    "snntorch": spikes_of_state,
    "spikingjelly": spikingjelly_steps,
    "loralib": lora_merges,
    "torchcfm": flow_matching,
    "bayesian_torch": bayesian,
    "torchsde": neural_ode,
    "backpack": batch_gradients,
    "keras": keras_training,
    "ema_pytorch": moving_average,
}
LOOPS: Mapping[str, Loop] = {
    **{f"loop/{each.__name__}": each for each in PLAIN},
    **{f"loop/{name}": each for name, each in PACKAGED.items()},
}
