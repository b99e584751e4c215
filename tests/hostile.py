"""Arguments of the operations, and calls with arguments that no caller should pass.

    python tests/hostile.py [--calls N] [--torch]

Each call ends in a result, a ValueError, or an error of torch where its operations refuse an argument before ours are
reached. A crash ends the process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

import networkx as nx
import torch
from helpers import batch_of, from_networkx, normal
from torch import Tensor

from tg_lpe import Graph
from tg_lpe.ops import attention, balls, cpu, edges, segment
from tg_lpe.ops.edges import adjacency_rows
from tg_lpe.ops.segment import RowGroups, group_pointers, segment_sum
from tg_lpe.ops.walks import add_walks_

OPS = torch.ops.tg_lpe
PARTS = [from_networkx(nx.cycle_graph(5)), from_networkx(nx.path_graph(3))]
GRAPH = Graph(**batch_of(PARTS).arguments(weighted=False))
STRUCTURE = GRAPH.tail, GRAPH.head, GRAPH.ptr
NODES, EDGES = GRAPH.num_nodes, GRAPH.num_edges
DIRECTED = torch.cat([GRAPH.tail, GRAPH.head]), torch.cat([GRAPH.head, GRAPH.tail]).sort().values


def grad(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).requires_grad_()


def _laplacian() -> tuple[Any, ...]:
    scaled = GRAPH.scaled_laplacian(torch.empty(0, dtype=torch.float64), True)
    return *scaled[:-3], *(scaled.rows or adjacency_rows(*STRUCTURE[:2], scaled.node_scale, None))


def samples() -> dict[str, tuple[Any, ...]]:
    """Arguments of each registered operation, on a batch of two graphs."""
    index = torch.tensor([0, 0, 1, 3])
    groups = RowGroups(torch.tensor([1, 0, 1]), 4)
    stacks = [0.5 * normal(2, 3, 3, seed=seed) for seed in range(4)]
    trained = [stack.clone().requires_grad_() for stack in stacks[:3]]
    later = torch.tensor([0.5, 2.0], dtype=torch.float64)
    adjacency = 0.4 * normal(2, EDGES)
    operator, rows = _laplacian(), _laplacian()[-3:]
    estimate = *STRUCTURE[:2], NODES, NODES, 2.0, 1.0, 4, 3, 7
    polynomials = *STRUCTURE, NODES, GRAPH.max_nodes, 2.0, 1.0, 3
    width = 2 * 3
    found: dict[str, tuple[Any, ...]] = {
        "adjacency_rows": (normal(NODES), *STRUCTURE[:2], normal(EDGES)),
        "laplacian": (grad(NODES, 2), *rows[:2], rows[2].clone().requires_grad_(), grad(NODES, seed=1)),
        "scatter_sum": (grad(4, 2), torch.tensor([3, 0, 1, 0]), 5),
        "gather_sum": (grad(4, 2), index, torch.tensor([0, 3, 3, 4])),
        "gather_rows": (grad(4, 2), groups.index, groups.order, groups.ptr, groups.sorted_index),
        "matrix_polynomials": (adjacency.clone().requires_grad_(), *polynomials),
        "estimated_polynomials": (adjacency.clone().requires_grad_(), *estimate, True),
        "layers": (normal(NODES, 3), *operator, *stacks, True, later, 1e-12),
        "layers_forward": (grad(NODES, 3), *operator, *trained, stacks[3], True, later, 1e-12),
    }
    if cpu.is_available():  # without a backend, the reference computes gradients
        plain = (x.detach() if isinstance(x, Tensor) else x for x in found["layers_forward"])
        kept = OPS.layers_forward(*plain)[1:]
        numbers = True, later, 1e-12
        found["layers_backward"] = normal(NODES, 3), normal(NODES, 3), *operator, *stacks, *numbers, *kept
        gradients = normal(NODES, width), normal(EDGES, width)
        found["matrix_polynomials_backward"] = adjacency, *polynomials, *gradients
    if segment.torch_scatter is not None:
        found["segment_sum"] = grad(4, 2), group_pointers(index, 5), index
    return found


def _attention(query: Tensor, key_value: Tensor, edge: Tensor, *fields: Tensor) -> Any:
    source, target = RowGroups(DIRECTED[0], NODES), RowGroups(DIRECTED[1], NODES, is_sorted=True)
    source.index, source.order, source.ptr, target.index, target.ptr = fields
    return attention.edge_attention(query, key_value, edge, source, target, 2)


def operations() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Every operation with arguments that are right."""
    found = {name: (getattr(OPS, name), arguments) for name, arguments in samples().items()}
    tail, head, _ = STRUCTURE
    rows = edges.AdjacencyRows(*_laplacian()[-3:])
    polynomials = grad(2, EDGES), tail, head, torch.arange(NODES) % 4 + 1, "power", 3
    groups = RowGroups(DIRECTED[0], NODES)
    fields = groups.index, groups.sorted_order, groups.ptr, DIRECTED[1], group_pointers(DIRECTED[1], NODES)
    index = torch.tensor([0, 0, 1, 3])
    return found | {
        "segment_sum": (segment_sum, (grad(4, 2), group_pointers(index, 5), index)),
        "undirected_edges": (edges.undirected_edges, (torch.stack([tail, head]), NODES, GRAPH.batch, GRAPH.num_graphs)),
        "laplacian_step_": (
            lambda *args: edges.laplacian_step_(edges.AdjacencyRows(*args[:3]), *args[3:]),
            (*rows, normal(NODES), normal(NODES, 3), normal(NODES, 3)),
        ),
        "ball_orders": (balls.ball_orders, (tail, head, NODES, 5, 100)),
        "ball_polynomials": (balls.ball_polynomials, polynomials),
        "walks": (add_walks_, (normal(NODES, 4), normal(EDGES, 4), normal(EDGES), tail, head, index[:1])),
        "edge_attention": (_attention, (grad(NODES, 16), grad(NODES, 32), grad(2 * EDGES, 16), *fields)),
    }


INTEGERS = [-(2**63), -(2**31), -1, 0, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 3]
ERRORS_OF_TORCH = IndexError, NotImplementedError, RuntimeError, TypeError
FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, 1e308]
TENSORS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x[:0],
    lambda x: x[:-1],
    lambda x: x[..., :-1],
    lambda x: torch.cat([x, x]),
    lambda x: x.unsqueeze(0),
    lambda x: x.flatten()[0],
    lambda x: x.new_empty(0),
    lambda x: x.mT.contiguous().mT if x.dim() > 1 else x.repeat_interleave(2)[::2],
    lambda x: x.flip(0),
    lambda x: x.int(),
    lambda x: x.long(),
    lambda x: x.float(),
    lambda x: x.half(),
    lambda x: x.to("meta"),
    lambda x: x.to_sparse(),
    lambda x: x.expand(1000, *x.shape),
    lambda x: x - 1,
    lambda x: x + 1,
    *(lambda x, value=value: torch.full_like(x, value) for value in (2**31 - 1, -(2**31), 1e300, float("nan"))),
    *(lambda x, value=value: x.where(torch.rand(x.shape) < 0.7, value) for value in (-1, 9, 2**31 - 1, 2**62)),
]


def altered(value: Any, draw: random.Random) -> Any:
    """A hostile value in place of a right one."""
    if isinstance(value, Tensor):
        while True:
            with contextlib.suppress(RuntimeError, IndexError):  # not every dtype holds, or shape has, each of these
                changed = draw.choice(TENSORS)(value.detach())
                return changed.requires_grad_(value.requires_grad and changed.is_floating_point())
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return draw.choice(FLOATS)
    # Loops of torch over a number of layers would end in years.
    return draw.choice(INTEGERS) if isinstance(value, int) and cpu.is_available() else value


def call_operations(num_calls: int) -> None:
    """Call each operation with one or two arguments altered, and its gradient."""
    for name, (operation, arguments) in operations().items():
        draw, ends = random.Random(name), Counter[str]()
        torch.manual_seed(0)
        for _ in range(num_calls):
            changed = list(arguments)
            for at in draw.sample(range(len(changed)), draw.randint(1, 2)):
                changed[at] = altered(changed[at], draw)
            try:
                out = operation(*changed)
                outs = [x for x in ([out] if isinstance(out, Tensor) else out) if isinstance(x, Tensor)]
                sum((x.double().sum() for x in outs if x.requires_grad), torch.zeros((), requires_grad=True)).backward()
                ends["result"] += 1
            except (ValueError, MemoryError, *ERRORS_OF_TORCH) as error:
                ends[type(error).__name__] += 1
        print(f"{name}: {dict(ends)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--torch", action="store_true", help="without the C++ part")
    args = parser.parse_args()
    if not os.environ.get("LD_PRELOAD"):  # sanitizers reserve terabytes of addresses, and have a limit of their own
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
    with cpu.switched_off() if args.torch else contextlib.nullcontext():
        call_operations(args.calls)


if __name__ == "__main__":
    main()
