"""Checkpoints of all classes with one hostile integer each: they end in a result or a ValueError.

    python tests/hostile_arguments.py [NAME ...] [--every N]

Each checkpoint is loaded, and encodes a ring, in a process of its own. Anything else than finite numbers or a
ValueError is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
import itertools
import json
import operator
import os
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tg_lpe.checkpoints import checkpoint as checkpoints
from tg_lpe.encoders import ENCODERS
from tg_lpe.models import GraphTransformer, TupleTransformer
from tg_lpe.nn.attention import ATTENTIONS

VALUES = [-(10**30), -(2**63), -1, 0, 1, 2, 3, 7, 64, 255, 4096, 2**16, 10**5 + 1, 2**20, 10**9]
VALUES += [2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]
NUM_NODES, SECONDS = 64, 120


def modules() -> Iterator[tuple[str, Any]]:
    """A small module of each class."""
    walks = ENCODERS["RandomWalk"](steps=4)
    parts = {"Whitened": {"encoder": walks}, "Combined": {"encoders": [walks]}}
    parts["FromTransform"] = {"transform": "AddRandomWalkPE", "options": {"walk_length": 4}, "attr_name": None}
    for name, encoder in ENCODERS.items():
        yield name, encoder(**parts.get(name, {}))
    yield "GramTransformer, signs", ENCODERS["GramTransformer"](probes="rademacher", num_layers=3, num_filters=1)
    yield "LinearTransformer, learned", ENCODERS["LinearTransformer"](probes="learned", max_nodes=NUM_NODES)
    small: dict[str, Any] = {"hidden_channels": 8, "num_layers": 1, "num_node_types": 1}
    for name in ATTENTIONS:
        yield f"GraphTransformer, {name}", GraphTransformer(heads=2, attention=name, pe_channels=2, **small)
    yield "TupleTransformer", TupleTransformer(heads=2, k=1, pe_channels=2, **small)


def integers(config: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of the integers of a configuration."""
    entries = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    for key, value in entries:
        if type(value) is int:
            yield *place, key
        yield from integers(value, (*place, key))


def places(module: Any, config: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Places of all integers, and the arguments of the class that may be integers."""
    found = set(integers(config))
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if "int" in str(parameter.annotation) and not isinstance(config.get(name), bool | list | dict):
            found.add((name,))
    return sorted(found, key=str)


def encode(folder: Path, cls: type) -> None:
    """Load a checkpoint and encode a ring; raise ``ArithmeticError`` if a number is not finite."""
    module: Any = cls.from_pretrained(folder)  # type: ignore[attr-defined]
    ring = torch.arange(NUM_NODES)
    edge_index = torch.stack([torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])])
    with torch.no_grad():
        if isinstance(module, GraphTransformer | TupleTransformer):
            outputs = [module(torch.zeros_like(ring), edge_index, batch=torch.zeros_like(ring), pe=torch.ones(64, 2))]
        else:
            outputs = [part for part in module(None, edge_index, num_nodes=NUM_NODES) if part is not None]
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise ArithmeticError("an output is not finite")


def outcome(folder: Path, cls: type) -> str:
    """How :func:`encode` ends in a process of its own: ``"result"``, ``"refused"`` or something worse."""
    read, write = os.pipe()
    if not (child := os.fork()):
        signal.alarm(SECONDS)
        try:
            encode(folder, cls)
            said = "result"
        except ValueError:
            said = "refused"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:300]
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    return said if (status := os.waitpid(child, 0)[1]) == 0 else f"signal {status}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of modules; all by default")
    parser.add_argument("--every", type=int, default=1, help="each how many-th checkpoint is tried")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts, tried = Counter[str](), 0
    for name, module in modules():
        if args.names and name not in args.names:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            module.save_pretrained(folder := Path(temporary))
            weights, path = (folder / checkpoints.WEIGHTS).read_bytes(), folder / checkpoints.CONFIG
            config = json.loads(path.read_text())
            del config[checkpoints.DIGEST]
            for place, value in itertools.product(places(module, config), VALUES):
                tried += 1
                if tried % args.every:
                    continue
                changed = copy.deepcopy(config)
                functools.reduce(operator.getitem, place[:-1], changed)[place[-1]] = value
                changed[checkpoints.DIGEST] = checkpoints._digest(changed, weights)
                path.write_text(json.dumps(changed))
                said = outcome(folder, type(module))
                counts[said if said in ("result", "refused") else "failed"] += 1
                if said not in ("result", "refused"):
                    print(f"{name} with {place}={value}: {said}", flush=True)
    print(dict(counts))
    sys.exit(bool(counts["failed"]) or not counts["refused"])


if __name__ == "__main__":
    main()
