"""Time transforms of one small graph on an idle and on a busy machine.

    python benchmarks/busy.py [--quick]

The graph has 23 nodes; times are medians of the wall time of one call. Each column is measured in a separate process
with that many threads. Busy processes spin, one for each processor, so a call that waits for a second thread takes many
times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import networkx as nx
import numpy as np
import torch
from _arguments import Parser
from _measure import in_own_process, timed
from _results import show, write_results
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import from_networkx

from tg_lpe import AddPositionalEncoding
from tg_lpe.encoders import RandomWalk, ResistiveEmbedding
from tg_lpe.transforms import AddEffectiveResistance, AddLaplacianEigenvectors, LinearTransformerPE

K, NUM_NODES = 8, 23
TRANSFORMS: dict[str, Callable[[], Any]] = {
    f"AddLaplacianEigenvectors({K})": lambda: AddLaplacianEigenvectors(K),
    f"AddPositionalEncoding(ResistiveEmbedding({K}))": lambda: AddPositionalEncoding(ResistiveEmbedding(K)),
    "AddEffectiveResistance()": AddEffectiveResistance,
    f"LinearTransformerPE({K})": lambda: LinearTransformerPE(K),
    f"AddPositionalEncoding(RandomWalk({K}))": lambda: AddPositionalEncoding(RandomWalk(K)),
    f"PyG AddLaplacianEigenvectorPE({K})": lambda: AddLaplacianEigenvectorPE(K, is_undirected=True),
    f"PyG AddRandomWalkPE({K})": lambda: AddRandomWalkPE(K),
}


def medians(threads: int, calls: int) -> dict[str, float]:
    """Measure the median seconds of a call of each transform in this process."""
    torch.set_num_threads(threads)
    data = from_networkx(nx.connected_watts_strogatz_graph(NUM_NODES, 4, 0.3, seed=0))
    found = {}
    for name, make in TRANSFORMS.items():
        transform = make()
        times = [timed(lambda transform=transform: transform(data))[1] for _ in range(calls + 3)]
        found[name] = float(np.median(times[3:]))
    return found


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep processors busy with other processes inside the context."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = Parser(__doc__, "a few calls", "busy.json")
    parser.add_argument("--worker", type=int, help="threads of this process, which prints its medians")
    args = parser.parse_args()
    if args.worker is not None:
        print(json.dumps(medians(args.worker, 10 if args.quick else 100)))
        return

    results: list[dict[str, Any]] = [{"what": name} for name in TRANSFORMS]
    for where, busy in (("quiet", 0), ("busy", os.cpu_count() or 1)):
        for threads in (1, 2):
            options = ["--worker", str(threads), *(["--quick"] if args.quick else [])]
            allowed = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
            with spinning(busy):
                seconds = in_own_process(__file__, *options, env=allowed)
            for row in results:
                row[f"{where}_{threads}"] = seconds[row["what"]]
    for row in results:
        row["seconds"] = row["quiet_1"]
        show(row)
    write_results(args.json, results, num_nodes=NUM_NODES, load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
