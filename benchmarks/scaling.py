"""Measure every encoder on large graphs: seconds and memory, or what it warns of.

    python benchmarks/scaling.py [--quick] [--data DIR] [--graphs NAME ...] [--add] [--json FILE]

The graphs are a star and a power law (preferential attachment, four edges a node), each of a million nodes; a clique of
3,000 nodes beside 100,000 small components; and the dependencies of Debian's packages, in DIR/nodes/debian.npz. Each
encoder runs once with its default arguments in a fork of the script, on one thread and in 8 GiB of address space, until
it is done, warns that it takes more than a minute and what is faster, or has taken a minute. Seconds are those of the
processor.
"""

from __future__ import annotations

import resource
import time
import warnings
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arguments import OPTIONS, Parser
from _measure import in_own_process, peak_gib
from _results import earlier_rows, show, write_results
from torch import Tensor

from tg_lpe import encoders
from tg_lpe.encoders.registry import ENCODERS

SIZES = {"debian": 63_678, "clique": 403_000, "star": 10**6, "power law": 10**6}
OF_OTHERS = ("Combined", "FromTransform", "Whitened")
LIMIT = 60


def edges_of(name: str, size: int, data: str) -> Tensor:
    """Return the edges of a graph of about the given size, each once."""
    if name == "star":
        return torch.stack([torch.zeros(size - 1, dtype=torch.int64), torch.arange(1, size)])
    if name == "clique":
        first = torch.arange(3 * size // 403, size - 3, 4)
        small = [torch.stack([first + a, first + b]) for a, b in ((0, 1), (1, 2), (2, 0), (2, 3))]
        return torch.cat([torch.combinations(torch.arange(3 * size // 403)).T, *small], 1)
    if name == "debian":
        return torch.from_numpy(np.load(Path(data, "nodes", "debian.npz"))["edge_index"]).long()
    draw, place = np.random.default_rng(0), np.arange(8 * size)  # each new edge ends where an earlier one does
    place[1::2] = draw.random(4 * size) * place[1::2]
    while (place[place] != place).any():
        place = place[place]
    return torch.from_numpy(draw.permutation(size)[place // 8].reshape(-1, 2).T.copy())


@torch.inference_mode()
def encode(name: str, size: int, data: str, encoder: str) -> dict[str, Any]:
    """Encode a graph in this process."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
    warnings.filterwarnings("error", "this graph is large, and takes")
    edge_index, said = edges_of(name, size, data), "done"
    made, start = getattr(encoders, encoder)().eval(), time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(start) + LIMIT, int(start) + LIMIT))
    try:
        made(torch.zeros(size, 1), edge_index, num_nodes=size)
    except (UserWarning, ValueError) as error:
        said = str(error).partition("takes about ")[2].partition(";")[0] or "refused"
    except (RuntimeError, MemoryError):
        said = "memory"
    return {"seconds": time.process_time() - start, "peak_gib": peak_gib(), "said": said}


def main() -> None:
    parser = Parser(__doc__, "a star of 1,000 nodes, one encoder", "scaling.json")
    parser.add_argument("--data", default=".", metavar="DIR", help="folder of all data")
    parser.add_argument("--graphs", nargs="+", choices=SIZES, default=list(SIZES), help="(default: all)")
    parser.add_argument("--add", **OPTIONS["--add"])
    args = parser.parse_args()
    rows = earlier_rows(args.json) if args.add else []
    names = ["RandomWalk"] if args.quick else [name for name in ENCODERS if name not in OF_OTHERS]
    for name in ["star"] if args.quick else args.graphs:
        size = 1024 if args.quick else SIZES[name]
        for encoder in names:
            try:
                found = in_own_process(encode, name, size, args.data, encoder)
            except BrokenProcessPool:
                found = {"seconds": LIMIT, "peak_gib": None, "said": "over a minute"}
            rows.append({"graph": name, "num_nodes": size, "encoder": encoder, **found})
            show(rows[-1])
            write_results(args.json, rows)


if __name__ == "__main__":
    main()
