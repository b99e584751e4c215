"""Test what an exchange through one virtual node can learn: three tasks on twelve nodes without edges.

    python benchmarks/pooled_exchange.py [--quick] [--seeds N ...] [--tasks NAME ...] [--attentions NAME ...]
        [--json FILE]

- "mean": y_i = sqrt(N) mean_j(x_j[0:3]) . x_i[3:6] for normal x in six channels. One mean of the graph is enough.
- "recall": every node has a random key, a value and the key of some node, whose value it must return. So each node has
  to read a particular other node.
- "recall, fixed keys": as "recall", but with the same twelve one-hot keys in each graph. One mean of the graph could
  hold a value for each key.

Two hybrid layers without message passing, 64 channels and 4 heads, read out at every node; AdamW at 3e-3 and a cosine
schedule, new graphs at every step. The figure is R^2 on unseen graphs. Rows of the file that are not run again are
kept, with their machine if it was another one.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import torch
from _arguments import Parser
from _results import earlier_rows, show, write_results
from torch import Tensor

import tg_lpe.theory  # noqa: F401 (registers dual and ksvd)
from tg_lpe import GraphTransformer

NODES, GRAPHS, STEPS, KEY = 12, 64, 700, 8
ATTENTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "primal": ("primal", {}),
    "dual": ("dual", {}),
    "dual, sum": ("dual", {"pooling": "sum"}),
    "ksvd": ("ksvd", {}),
    "sgformer": ("sgformer", {}),
    "performer": ("performer", {}),
    "softmax": ("softmax", {}),
}
"""Name and options of the attention of each row."""


def mean_task(graphs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw features ``[graphs * NODES, 6]`` and targets ``[graphs * NODES, 1]``."""
    x = torch.randn(graphs, NODES, 6, generator=generator)
    y = NODES**0.5 * (x[..., :3].mean(1, keepdim=True) * x[..., 3:]).sum(2)
    return x.flatten(0, 1), y.reshape(-1, 1)


def recall_task(graphs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw features ``[graphs * NODES, 2 * KEY + 1]``, own key, requested key and value, and targets ``[.., 1]``."""
    keys = torch.nn.functional.normalize(torch.randn(graphs, NODES, KEY, generator=generator), dim=2)
    return recall(keys, generator)


def fixed_recall_task(graphs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw as :func:`recall_task`, with features ``[graphs * NODES, 2 * NODES + 1]``."""
    return recall(torch.eye(NODES)[torch.rand(graphs, NODES, generator=generator).argsort(1)], generator)


def recall(keys: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the recall task for keys ``[graphs, NODES, width]``."""
    graphs = len(keys)
    asked = torch.rand(graphs, NODES, generator=generator).argsort(1).unsqueeze(2)
    values = torch.randn(graphs, NODES, 1, generator=generator)
    x = torch.cat([keys, keys.gather(1, asked.expand_as(keys)), values], 2)
    return x.flatten(0, 1), values.gather(1, asked).reshape(-1, 1)


TASKS = {
    "mean": (mean_task, 6),
    "recall": (recall_task, 2 * KEY + 1),
    "recall, fixed keys": (fixed_recall_task, 2 * NODES + 1),
}
"""Functions that draw graphs, with the width of their features."""


def run(task: str, attention: str, seed: int, steps: int) -> tuple[float, float]:
    """Train, and return R^2 on 1,000 new graphs and the seconds of training."""
    draw, channels = TASKS[task]
    name, options = ATTENTIONS[attention]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = GraphTransformer(
        in_channels=channels,
        hidden_channels=64,
        heads=4,
        num_layers=2,
        readout={"level": "node"},
        attention="hybrid",
        attention_options={
            "global_attention": name,
            "global_options": options,
            "local": "gatedgcn" if name == "none" else "none",  # without edges, it maps each node separately
        },
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    edges = torch.empty(2, 0, dtype=torch.int64)

    def call(x: Tensor, **options: bool) -> Any:
        graphs = len(x) // NODES
        batch = torch.arange(graphs).repeat_interleave(NODES)
        return model(x, edges, batch=batch, num_graphs=graphs, **options)

    start = time.perf_counter()
    for _ in range(steps):
        x, y = draw(GRAPHS, generator)
        out, penalty = call(x, return_penalty=True) if model.has_penalty else (call(x), 0.0)
        optimizer.zero_grad()
        (torch.nn.functional.mse_loss(out, y) + penalty).backward()
        optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - start
    model.eval()
    x, y = draw(1000, generator)
    with torch.no_grad():
        error = torch.nn.functional.mse_loss(call(x), y)
    return float(1 - error / y.var()), seconds


def main() -> None:
    parser = Parser(__doc__, "a few steps of one seed", "pooled_exchange.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="(default: all)")
    parser.add_argument(
        "--attentions", nargs="+", choices=list(ATTENTIONS), default=list(ATTENTIONS), help="(default: all)"
    )
    args = parser.parse_args()
    seeds, steps = (args.seeds[:1], 3) if args.quick else (args.seeds, STEPS)
    rows = {(row["task"], row["attention"]): row for row in earlier_rows(args.json)}
    if other := {row["steps"] for row in rows.values()} - {steps}:
        parser.error(f"{args.json} has rows of {sorted(other)} steps, these are of {steps}: give another --json FILE")
    for task in args.tasks:
        for attention in args.attentions:
            found = [run(task, attention, seed, steps) for seed in seeds]
            scores, seconds = [score for score, _ in found], [spent for _, spent in found]
            row = {"task": task, "attention": attention, "r2": statistics.mean(scores), "r2_by_seed": scores}
            row |= {"seeds": seeds, "steps": steps, "seconds": statistics.mean(seconds)}
            rows[task, attention] = row
            show(row)
    ordered = [rows[key] for key in itertools.product(TASKS, ATTENTIONS) if key in rows]
    write_results(args.json, ordered)


if __name__ == "__main__":
    main()
