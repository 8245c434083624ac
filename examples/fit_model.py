"""A PyTorch model in half of the memory that it needs: one line, and the same answers.

    python examples/fit_model.py

On a GPU, leave `device="cpu"` out: here a bounded arena plays the device, so that it runs everywhere.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import loadmaster as lm


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> list[float]:
    """The losses of five steps."""
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    plain = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    batch = torch.randn(4, 32, 128)

    model = copy.deepcopy(plain).eval()
    lm.fit(model, batch, memory="50%", device="cpu", search=1.0)
    with torch.no_grad():
        print("inference is the same:", torch.equal(model(batch), plain.eval()(batch)))

    model = copy.deepcopy(plain).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    lm.fit(model, batch, memory="50%", device="cpu", optimizer=optimizer, search=1.0)
    model.fitted.wait_for_plan()
    torch.manual_seed(1)  # for dropout
    losses = train(model, optimizer, batch)
    torch.manual_seed(1)
    expected = train(plain.train(), torch.optim.Adam(plain.parameters(), 1e-3), batch)
    print("five steps of Adam are the same:", torch.allclose(torch.tensor(losses), torch.tensor(expected)))
    report = model.fitted.report
    print(f"needs {report['needed_bytes']:,} bytes, has {report['memory_bytes']:,}")


if __name__ == "__main__":
    main()
