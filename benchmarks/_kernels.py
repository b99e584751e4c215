"""The Triton kernels against torch on the same device, and both against float64.

    python benchmarks/_kernels.py [--quick] [--device DEVICE] [--json FILE]

A row is an encoder on a batch of random graphs, with or without the gradient of its weights. The error is the largest
deviation from float64 over the largest entry, of the encoding or of the gradients. A row holds if the kernels' error is
at most four times torch's, up to 1e-5, and all repeats agree in every bit. On a CPU, Triton's interpreter runs the
kernels, on few and small graphs: errors count there, times do not.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _measure import synchronize
from torch import Tensor

from tg_lpe import Encoder, GramTransformer, LinearTransformer
from tg_lpe.hub.files import write_json
from tg_lpe.ops import triton
from tg_lpe.ops.triton import polynomials
from tg_lpe.training.run_folder import environment

ENCODERS: dict[str, tuple[type[Encoder], dict[str, Any], bool]] = {
    "layers, diagonal weights": (LinearTransformer, {"k": 8}, True),
    "layers, diagonal weights, 16 columns": (LinearTransformer, {"k": 16}, True),
    "layers, full weights": (LinearTransformer, {"k": 8, "diagonal": False}, False),
    "polynomials, power basis": (GramTransformer, {"out_channels": 8, "edge_out_channels": 8}, True),
    "polynomials, Chebyshev basis": (GramTransformer, {"out_channels": 8, "basis": "chebyshev"}, True),
}
"""Class, arguments, and whether the kernels have a gradient."""

BATCHES = {"molecules": (2000, 9, 38, 0.1), "64 nodes": (500, 40, 64, 0.1), "128 nodes": (200, 100, 128, 0.05)}
"""Number of graphs, fewest and most nodes, and share of the pairs that are edges besides those of a random tree."""
QUICK = {"5 nodes at most": (2, 1, 5, 0.1)}


def random_batch(num_graphs: int, fewest: int, most: int, share: float, seed: int = 0) -> dict[str, Any]:
    """Arguments of an encoder for a batch of connected random graphs with conductances from 0.5 to 1.5."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(fewest, most + 1, (num_graphs,), generator=generator)
    sizes[0] = most
    edges, first = [], 0
    for n in sizes.tolist():
        pairs = torch.rand(n, n, generator=generator) < share
        node = torch.arange(1, n)
        pairs[(torch.rand(n - 1, generator=generator) * node).long(), node] = True
        edges.append(pairs.triu(1).nonzero().T + first)
        first += n
    index = torch.cat(edges, dim=1)
    weight = 0.5 + torch.rand(index.size(1), generator=generator)
    return {
        "edge_index": torch.cat([index, index.flip(0)], dim=1),
        "edge_weight": torch.cat([weight, weight]),
        "batch": torch.repeat_interleave(sizes),
        "num_graphs": num_graphs,
    }


def outputs(model: Encoder, batch: dict[str, Any], gradient: bool) -> list[Tensor]:
    """The encoding, or the gradients of the weights."""
    with torch.set_grad_enabled(gradient):
        parts = [part for part in model(None, **batch) if part is not None]
        if not gradient:
            return parts
        loss = torch.stack([part.square().sum() for part in parts]).sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Largest deviation over the largest entry."""
    size = max(float(part.abs().max()) for part in exact)
    return max(float((a.double() - b).abs().max()) for a, b in zip(found, exact, strict=True)) / size


def compare(
    name: str, size: str, gradient: bool, batch: dict[str, Any], device: torch.device, repeats: int
) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(0)
    kind, arguments, _ = ENCODERS[name]
    model = kind(**arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    there = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
    exact_batch = {**there, "edge_weight": there["edge_weight"].double()}
    with triton.switched(False):
        exact = outputs(copy.deepcopy(model).double().to(device), exact_batch, gradient)
    model = model.to(device)
    row: dict[str, Any] = {"what": f"{name}, {size}", "gradient": gradient}
    for label, on in (("", True), ("_torch", False)):
        with triton.switched(on):
            first, times, equal = outputs(model, there, gradient), [], True
            for _ in range(repeats):
                synchronize(device)
                start = time.perf_counter()
                again = outputs(model, there, gradient)
                synchronize(device)
                times.append(time.perf_counter() - start)
                equal &= all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        figures = {"seconds": statistics.median(times), "error": error(first, exact), "repeats_equal": equal}
        row |= {f"{key}{label}": value for key, value in figures.items()}
    row["times_faster"] = row["seconds_torch"] / row["seconds"]
    row["holds"] = row["repeats_equal"] and row["error"] <= 4 * row["error_torch"] + 1e-5
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small graphs")
    parser.add_argument("--device", type=torch.device, default="cuda", help="(default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", default="benchmarks/results/gpu_kernels.json")
    args = parser.parse_args()
    if args.device.type == "cpu" and not triton.interpreted:  # Triton reads it when it is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "TRITON_INTERPRET": "1"})
    with triton.switched(True):
        if not triton.supports(torch.zeros(1, device=args.device)):
            sys.exit(f"the Triton kernels do not run on {args.device}: no Triton, or no NVIDIA GPU of capability 8.0")

    results = []
    print(f"{'':50} gradient       error   of torch   bit for bit   times faster")
    for size, shape in (QUICK if args.quick or triton.interpreted else BATCHES).items():
        batch = random_batch(*shape)
        for name, (kind, _, has_gradient) in ENCODERS.items():
            if kind is GramTransformer and shape[2] > polynomials.MAX_NODES:
                continue
            for gradient in (False, True) if has_gradient else (False,):
                row = compare(name, size, gradient, batch, args.device, 2 if args.quick else 30)
                results.append(row)
                print(
                    f"{row['what']:50} {gradient!s:8}   {row['error']:9.1e}   {row['error_torch']:8.1e}   "
                    f"{row['repeats_equal']!s:11}   {row['times_faster']:12.2f}"
                    f"{'' if row['holds'] else '   DOES NOT HOLD'}",
                    flush=True,
                )
    machine = environment()
    write_json(Path(args.json), {"device": str(args.device), "results": results, "machine": machine})
    if not all(row["holds"] for row in results):
        sys.exit("some rows do not hold")


if __name__ == "__main__":
    main()
