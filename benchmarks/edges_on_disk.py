"""Time and memory of sorting and encoding a graph whose edges stay on disk, compared with the graph in memory.

    python benchmarks/edges_on_disk.py [--quick] [--edges M ...] [--json FILE]

A Gram transformer with 8 channels for nodes, 16 layers and 4 filters encodes random graphs with three edges per node,
without locality. The list of edges is written as an `.npy` file, sorted into a folder and encoded. Each step runs in a
fork of the script, so that its peak memory can be measured. The peak includes pages of the mapped edges, which the
system frees when it needs memory. `--edges 200000000` takes 12 GiB in addition to these pages, and 5 GB of disk in the
folder `TMPDIR`. Times are processor times summed over threads, so other load matters little; with `OMP_NUM_THREADS=1`
they are those of one core.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _measure import in_own_process, peak_gib
from _results import show, write_results

from tg_lpe import GramTransformer, Graph
from tg_lpe.encoders.on_disk import encode_on_disk
from tg_lpe.graph.on_disk import GraphOnDisk

LAYERS, FILTERS, PROBES, EDGES_A_NODE = 16, 4, 16, 3
IN_MEMORY = 10_000_000
"""Largest number of edges for which the graph is also encoded in memory."""


def write_edges(path: Path, num_nodes: int) -> None:
    """Write three edges from each node ``i`` to ``a i + b``, int32, with ``a`` coprime to the number of nodes."""
    generator = np.random.default_rng(0)
    edges = np.lib.format.open_memmap(path, "w+", np.int32, (2, EDGES_A_NODE * num_nodes))
    for number in range(EDGES_A_NODE):
        factor = int(generator.integers(num_nodes // 3, num_nodes))
        while math.gcd(factor, num_nodes) > 1:
            factor += 1
        shift = int(generator.integers(num_nodes))
        for start in range(0, num_nodes, 2**22):
            tail = np.arange(start, min(start + 2**22, num_nodes))
            place = slice(number * num_nodes + start, number * num_nodes + start + len(tail))
            edges[0, place], edges[1, place] = tail, (tail * factor + shift) % num_nodes
    edges.flush()


def encoder() -> GramTransformer:
    torch.manual_seed(0)
    return GramTransformer(8, 0, FILTERS, LAYERS, probes="rademacher", num_probes=PROBES).eval()


def step(name: str, folder: Path, num_nodes: int) -> dict[str, Any]:
    """Run one step in this process."""
    start, processor, found = time.perf_counter(), time.process_time(), {}
    if name == "build":
        found["num_edges"] = GraphOnDisk.build(folder / "edges.npy", num_nodes, folder).num_edges
    elif name == "encode":
        out = encode_on_disk(encoder(), GraphOnDisk(folder), columns=PROBES)
        found["sum"] = float(out.double().abs().sum())
    else:
        with torch.inference_mode():
            edge_index = torch.from_numpy(np.load(folder / "edges.npy")).long()
            out = encoder()(None, Graph(edge_index, num_nodes)).node
        found["sum"] = float(out.double().abs().sum())
    seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - processor}
    return {**seconds, "peak_gib": peak_gib(), **found}


def main() -> None:
    parser = Parser(__doc__, "30,000 edges", "edges_on_disk.json")
    parser.add_argument("--edges", type=int, nargs="+", default=[3_000_000, 30_000_000], help="(default: %(default)s)")
    args = parser.parse_args()
    rows = []
    for wanted in [30_000] if args.quick else args.edges:
        num_nodes = wanted // EDGES_A_NODE
        with tempfile.TemporaryDirectory(prefix="tg_lpe-edges-") as folder:
            write_edges(Path(folder, "edges.npy"), num_nodes)
            names = ("build", "encode", "memory") if wanted <= IN_MEMORY else ("build", "encode")
            steps = {name: in_own_process(step, name, Path(folder), num_nodes) for name in names}
        sums = [steps[name]["sum"] for name in names[1:]]
        if not math.isclose(sums[0], sums[-1], rel_tol=1e-4):
            raise RuntimeError(f"the encoding from disk is another: {sums[0]} beside {sums[-1]}")
        row: dict[str, Any] = {"num_nodes": num_nodes, "num_edges": steps["build"]["num_edges"]}
        for prefix, name in (("build_", "build"), ("", "encode"), ("memory_", "memory")):
            for figure in ("seconds", "cpu_seconds", "peak_gib"):
                row[prefix + figure] = steps.get(name, {}).get(figure)
        rows.append(row)
        show(rows[-1])
    write_results(args.json, rows, num_probes=PROBES, columns=PROBES)


if __name__ == "__main__":
    main()
