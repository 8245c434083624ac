"""Modules whose tensors have shapes, types and a device, and no data: tracing costs no memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.errors import require


def faked(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, device: str
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Copies of a module and its inputs that claim to be on `device`, wherever they are now.

    Which kernels a graph names, and in which layout they leave their results, depends on it.
    """
    torch = require("torch", "torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._pytree import tree_map_only

    # The exporter may take this mode over, and asks for one that could follow shapes.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(tracked_fakes=[]))

    def fake(tensor: Any) -> Any:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = torch.nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad)
    memo |= {id(buffer): fake(buffer) for buffer in module.buffers()}
    # What the memo holds counts as copied already: no weight is ever duplicated, ties stay ties.
    twin = copy.deepcopy(module, memo)
    return twin, *tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs or {})))
