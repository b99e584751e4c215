"""Random and malformed graphs and files, thrown at everything that takes them; and that faults are found.

``TG_LPE_FUZZ=3300 pytest tests/fuzz`` tries so many seeds in place of a few. A seed decides everything about its case.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tg_lpe.encoders import ENCODERS
from tg_lpe.models import MODELS
from tg_lpe.nn.attention import ATTENTIONS

pytest.importorskip("rdkit")

from fuzz import judge
from fuzz.graphs import DEFECTS, malformed_graph, random_graph
from fuzz.readers import all_readers
from fuzz.targets import Output, Target, all_targets, in_turn

targets_of = cache(all_targets)
REGISTERED = (*ENCODERS, *MODELS, *ATTENTIONS)  # now: other tests register classes of their own
SEEDS = int(os.environ.get("TG_LPE_FUZZ", "12"))
MEMORY = 4 * 2**30
"""Bytes that a test may allocate beyond what it has when it starts."""


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_graphs(seed: int) -> None:
    rng, dtype = Random(seed), (torch.float32, torch.float64)[seed % 2]
    if seed % 3:
        graph = malformed_graph(rng, 40, dtype)
    else:
        graph = random_graph(rng, max_graphs=6 if SEEDS < 100 else 256, dtype=dtype)
    assert judge.try_graph(seed, targets_of(dtype), graph) == []


@pytest.mark.parametrize("seed", [1, 3, 6, 9] if SEEDS < 100 else range(SEEDS // 3))  # the four are small files
def test_files(seed: int) -> None:
    assert judge.try_file(seed, *all_readers()) == []


def test_every_defect() -> None:
    made = {malformed_graph(Random(seed), 40).defect for seed in range(800)}
    assert made == set(DEFECTS)


def test_all_that_is_registered_is_called() -> None:
    names = " ".join(target.name for target in targets_of(torch.float32))
    assert all(name in names for name in (*REGISTERED, "tuple_tokens", "AddLaplacianEigenvectors"))
    called = {target.name for seed in range(60) for target in in_turn(targets_of(torch.float32), seed)}
    assert called == {target.name for target in targets_of(torch.float32)}


def busy(graph: Any, seed: int) -> list[Output]:
    end = time.process_time() + 5
    while time.process_time() < end:
        pass
    return []


def failing(error: Exception) -> Callable[[Any, int], list[Output]]:
    def run(graph: Any, seed: int) -> list[Output]:
        raise error

    return run


def changing(graph: Any, seed: int) -> list[Output]:
    graph.node_features.add_(1)
    return []


FORM = Output(torch.zeros(3, 2), (3, 2), torch.float32)


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (lambda graph, seed: [FORM._replace(values=torch.full((3, 2), torch.nan))], "not finite"),
        (lambda graph, seed: [FORM._replace(values=torch.full((3, 2), torch.inf))], "not finite"),
        (lambda graph, seed: [FORM._replace(shape=(2, None))], "form"),
        (lambda graph, seed: [FORM._replace(dtype=torch.float64)], "form"),
        (lambda graph, seed: [FORM._replace(values=None)], "form"),
        (failing(IndexError("edge_index")), "error"),
        (failing(ValueError("something is wrong")), "unnamed"),
        (changing, "changed"),
        (busy, "hang"),
    ],
)
def test_findings(run: Callable[[Any, int], list[Output]], kind: str) -> None:
    seed = next(seed for seed in range(1000) if malformed_graph(Random(seed), 9).defect == "negative edge_index")
    graph = malformed_graph(Random(seed), 9)
    before = graph.node_features.clone()
    (finding,) = judge.try_graph(seed, [Target("mine", "mine", run)], graph, seconds=0.2)
    assert (finding.kind, finding.seed, finding.target) == (kind, seed, "mine")
    assert torch.equal(graph.node_features, before)
