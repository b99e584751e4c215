"""Where a transform puts what it has computed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data


def write_node_encoding(data: Data, name: str | None, encoding: Tensor) -> None:
    """Put an encoding of the nodes, ``[num_nodes, k]``, under a name, or beside ``data.x`` if there is none."""
    if name is not None:
        data[name] = encoding
    elif data.x is None:
        data.x = encoding
    else:
        x = data.x.unsqueeze(-1) if data.x.dim() == 1 else data.x
        data.x = torch.cat([x.to(encoding.dtype), encoding], dim=-1)
