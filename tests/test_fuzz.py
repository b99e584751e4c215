"""A few cases of benchmarks/fuzz.py, and that it finds what it looks for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers import few
from hypothesis import given

from tg_lpe import Incidence
from tg_lpe.encoders import ENCODERS
from tg_lpe.models import MODELS
from tg_lpe.nn.attention import ATTENTIONS
from tg_lpe.testing import DEFECTS, malformed_graph, random_graph, strategies

pytest.importorskip("rdkit")
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "fuzz.py"
sys.path.insert(0, str(SCRIPT.parent))
import fuzz  # noqa: E402
from _fuzz_targets import Output, Target, all_targets, in_turn  # noqa: E402

TARGETS = {dtype: all_targets(dtype) for dtype in (torch.float32, torch.float64)}
REGISTERED = (*ENCODERS, *MODELS, *ATTENTIONS)  # now: other tests register classes of their own


def ignore(_: str) -> None:
    pass


@pytest.mark.parametrize("make", [random_graph, malformed_graph])
@pytest.mark.parametrize("seed", range(6))
def test_graphs(seed: int, make: Callable[..., Any]) -> None:
    dtype = (torch.float32, torch.float64)[seed % 2]
    options = {"max_graphs": 6} if make is random_graph else {}
    graph = make(Random(seed), 12, dtype=dtype, **options)
    tally = fuzz.try_graph(seed, TARGETS[dtype], ignore, graph)
    assert tally.rows and not tally.findings


def test_every_defect() -> None:
    made = {malformed_graph(Random(seed), 40).defect for seed in range(800)}
    assert made == set(DEFECTS)


def test_files() -> None:
    readers, valid = fuzz.all_readers()
    for seed in (1, 3, 6, 9):  # small ones
        assert not fuzz.try_file(seed, readers, ignore, valid).findings


def test_all_that_is_registered_is_called() -> None:
    names = " ".join(target.name for target in TARGETS[torch.float32])
    assert all(name in names for name in (*REGISTERED, "tuple_tokens", "AddHeatKernelPE"))
    called = {target.name for seed in range(60) for target in in_turn(TARGETS[torch.float32], seed)}
    assert called == {target.name for target in TARGETS[torch.float32]}


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
def test_findings(run: Callable[[Any, int], list[Output]], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "HANG", 0.2)
    seed = next(seed for seed in range(1000) if malformed_graph(Random(seed), 9).defect == "negative edge_index")
    graph = malformed_graph(Random(seed), 9)
    before = graph.node_features.clone()
    (finding,) = fuzz.try_graph(seed, [Target("mine", "mine", run)], ignore, graph).findings
    assert (finding.kind, finding.seed, finding.target) == (kind, seed, "mine")
    assert torch.equal(graph.node_features, before)


@pytest.mark.parametrize(
    ("error", "kind"), [(ValueError("edge_index is wrong"), "refused"), (ValueError("edge_indexes"), "unnamed")]
)
def test_refusals(error: Exception, kind: str) -> None:
    def call() -> list[Output]:
        raise error

    assert fuzz.judge(call, ["edge_index"], True)[0] == kind
    assert fuzz.judge(call, ["edge_index"], False)[0] == "error"


def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker goes on after the seed in which it died."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "start = int(sys.argv[sys.argv.index('--start') + 1])\n"
        "count = int(sys.argv[sys.argv.index('--count') + 1])\n"
        "for seed in range(start, start + count):\n"
        "    open(sys.argv[sys.argv.index('--json') + 1], 'wb').write(f'{seed} reader'.encode().ljust(256))\n"
        "    if seed == 3:\n"
        "        os.abort()\n"
        "    print(json.dumps({'seed': seed, 'rows': {}, 'findings': [], 'peak': 1.0}), flush=True)\n"
    )
    monkeypatch.setattr(fuzz, "__file__", str(script))
    answers = list(fuzz.run("graphs", range(6), ""))
    assert [answer["seed"] for answer in answers] == [0, 1, 2, 3, 4, 5]
    (finding,) = answers[3]["findings"]
    assert (finding.kind, finding.target) == ("crash", "reader") and "-6" in finding.message


def test_pieces_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    finding = fuzz.Finding("graphs", 4, "encoder", "not finite", "2 graphs", "7 values")

    def answers(what: str, seeds: range, only: str) -> Iterator[dict[str, Any]]:
        rows = {"encoders": {"calls": 3, "refused": 1, "findings": 0, "seconds": 0.5}}
        for seed in seeds:
            found = [finding] if seed == finding.seed else []
            yield {"seed": seed, "graphs": 2, "rows": rows, "findings": found, "peak": float(seed)}

    def piece(start: int, count: int) -> object:
        options = ["--start", str(start), "--count", str(count), "--files", "0", "--json", str(tmp_path / "fuzz.json")]
        monkeypatch.setattr(sys, "argv", ["fuzz.py", *options])
        with pytest.raises(SystemExit) as end:
            fuzz.main()
        return end.value.code

    monkeypatch.setattr(fuzz, "run", answers)
    assert piece(0, 2) == 0 and piece(2, 1) == 0
    assert "already; choose another --start" in str(piece(1, 1))
    assert piece(4, 1) == 1
    result = json.loads((tmp_path / "fuzz.json").read_text())
    assert result["seeds"] == {"graphs": [[0, 3], [4, 5]]}
    assert (result["cases"], result["graphs"], result["peak_mib"]) == (4, 8, 4.0)
    assert result["results"] == [{"what": "encoders", "calls": 12, "refused": 4, "findings": 0, "seconds": 2.0}]
    assert result["findings"] == [finding._asdict()]
    other = {**result, "seeds": {"graphs": [[7, 8]]}}
    fuzz.merge(result, other)
    assert result["seeds"] == {"graphs": [[0, 3], [4, 5], [7, 8]]} and result["graphs"] == 16
    assert result["results"][0]["calls"] == 24
    with pytest.raises(SystemExit, match="in common"):
        fuzz.merge(result, other)
    monkeypatch.setattr(fuzz, "code_digest", lambda: "other")
    assert "has results of other code" in str(piece(9, 1))


@few
@given(strategies.graphs(max_nodes=12))
def test_strategy_of_graphs(graph: Any) -> None:
    made = Incidence(
        graph.edge_index,
        graph.num_nodes,
        edge_weight=graph.edge_weight,
        batch=graph.batch,
        num_graphs=graph.num_graphs,
    )
    assert made.num_nodes == len(graph.node_types) and graph.defect is None


@few
@given(strategies.malformed_graphs(max_nodes=12))
def test_strategy_of_malformed_graphs(graph: Any) -> None:
    assert graph.defect in DEFECTS and graph.blamed


@few
@given(strategies.files([b"{}"]))
def test_strategy_of_files(file: Any) -> None:
    assert isinstance(file.content, bytes) and file.kind


def test_seeds_decide() -> None:
    first, second = (random_graph(Random(5), 30, 8) for _ in range(2))
    assert all(map(fuzz.same, first.tensors(), second.tensors()))
