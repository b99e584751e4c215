"""What two processes of ``torchrun`` do for tests/app/training/test_processes.py, and the same for one process.

``launch`` writes what happened into a folder. The second process kills itself once, on the way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch_geometric.data import Data

from tg_lpe import GramTransformer, LinearTransformer
from tg_lpe.app.cli import main
from tg_lpe.app.training import (
    EigenvectorPretraining,
    JointTraining,
    KernelPretrainConfig,
    KernelPretraining,
    PretrainConfig,
    TrainConfig,
    build_model,
    task_for,
    train,
)
from tg_lpe.app.training.kernels import kernel_channels
from tg_lpe.app.training.loop import TrainingLoop, run_in_folder
from tg_lpe.app.training.processes import average_gradients, join
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.data import GraphSplits
from tg_lpe.data.seeding import seeded
from tg_lpe.nn import norms, parallel

SMALL: dict[str, Any] = {"hidden_channels": 8, "heads": 2, "num_layers": 2}
LOOP: dict[str, Any] = {"epochs": 3, "batch_size": 7, "precision": "float32", "schedule": "constant", "lr": 1e-3}
SPECTRAL = {"class": "SpectralEncoder", "out_channels": 4, "edge_out_channels": 4, "num_eigenpairs": 3, "heads": 2}
SPECTRAL |= {"num_layers": 1, "feedforward_channels": 8, "tokens": "eigenvectors"}
PRIMAL = {"global_attention": "primal", "global_options": {"rank": 3, "num_rows": 4}}

TRAININGS: dict[str, dict[str, Any]] = {
    "signs and averages": {
        "encoder": {"class": "LaplacianEigenvectors", "k": 4},
        "model": {"readout": {"pooling": "both", "norm": "running"}, "pe_options": {"norm": True}},
        "loop": {"recalibrate": 12, "clip": 0.1},
    },
    "random probes": {
        "encoder": {"class": "LinearTransformer", "k": 4, "probes": "random"},
        "model": {"attention_options": {"norm": "bounded"}, "attention": "gps"},
        "loop": {"clip": 0.1, "clip_jointly": True, "schedule": "plateau", "patience": 0},
    },
    "spectra": {"encoder": SPECTRAL, "model": {"attention_options": {"norm": "running"}}},
    "a penalty of nodes": {"model": {"attention": "hybrid", "attention_options": PRIMAL}},
    "classes of nodes": {
        "level": "node",
        "task": {"name": "multiclass", "balanced": True, "metric": "balanced_accuracy"},
    },
}
NORMS = ("batch", "bounded", "running")
ROWS = {"both": (4, 9), "one has none": (9, 9), "one each": (1, 2), "one in all": (0, 1), "none": (0, 0)}
"""Rows of the first process, and of both together."""


def graphs(count: int, seed: int, level: str = "graph") -> list[Data]:
    """Random graphs of 3 to 9 nodes, some without an edge, some with a label missing."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        n = int(torch.randint(3, 10, (), generator=generator))
        there = torch.rand(n, n, generator=generator).triu(1) < (0.0 if number % 5 == 0 else 0.5)
        edge = there.nonzero().T
        x = torch.randint(0, 3, (n,), generator=generator)
        if level == "node":
            y = ((x + torch.randint(0, 2, (n,), generator=generator)) % 3).float()
        else:
            y = torch.stack([torch.tensor(edge.size(1) / n), torch.randn((), generator=generator)]).unsqueeze(0)
            y[0, 1] = torch.nan if number % 3 == 0 else y[0, 1]
        made.append(Data(x=x, edge_index=torch.cat([edge, edge.flip(0)], 1), y=y, num_nodes=n))
    return made


def splits(level: str = "graph") -> GraphSplits:
    """Batches of 7, 7, 7 and 1 graphs to train on."""
    return GraphSplits.of(graphs(22, 0, level), graphs(9, 1, level), graphs(9, 2, level), level=level)


def make_training(
    name: str, cls: type[JointTraining] = JointTraining, folder: RunFolder | None = None
) -> JointTraining:
    """One of the trainings above."""
    case = TRAININGS[name]
    data = splits(case.get("level", "graph"))
    task = task_for(data, **case.get("task", {}))
    model = build_model(data.spec, task, case.get("encoder"), **{**SMALL, **case.get("model", {})})
    return cls(TrainConfig(**{**LOOP, **case.get("loop", {})}), model, data, task, folder, progress=False)


def make_pretraining(kind: str) -> TrainingLoop:
    """A pretraining of an encoder on the same graphs."""
    options = {"epochs": 2, "batch_size": 7, "schedule": "constant"}
    with seeded(0):
        if kind == "eigenvectors":
            encoder = LinearTransformer(k=4, out_channels=3, probes="random")
            return EigenvectorPretraining(
                PretrainConfig(**options, num_eigenvectors=3), encoder, splits(), progress=False
            )
        config = KernelPretrainConfig(**options, kernels=("heat",))
        width = kernel_channels(config.kernels)
        encoder = GramTransformer(out_channels=width, edge_out_channels=width)
    return KernelPretraining(config, encoder, splits(), progress=False)


def losses(training: TrainingLoop) -> list[list[float]]:
    """Training loss and validation figure of each epoch, then the figures of the result."""
    rows = []
    for _ in range(training.config.epochs):
        with seeded(training.epoch):
            row = training.train_epoch()
        with training.evaluated_weights():
            figures = training.validate()
        rows.append([row["train_loss"], *(value for value in figures.values() if not isinstance(value, dict))])
        if training.plateau is not None:
            training.plateau.step(figures["val_loss"])
    rows.append([value for value in training.result().values() if isinstance(value, float)])
    return rows


def normalized(name: str, rows: str, part: slice) -> dict[str, Tensor]:
    """Outputs, gradients and running statistics of a norm over three batches, of which this process has a part."""
    total = ROWS[rows][1]
    with seeded(1):
        norm = norms.NORMS[name](3).double().train()
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
        batches, targets = 5 + 100 * torch.randn(2, 3, total, 3, dtype=torch.float64)
    found: dict[str, Tensor] = {}
    for number, (batch, target) in enumerate(zip(batches, targets, strict=True)):
        x = batch[part].clone().requires_grad_()
        with parallel.divided():
            out = parallel.gather(norm(x))
        norm.zero_grad()
        (out * target).square().sum().backward()
        average_gradients(norm.parameters())
        with torch.no_grad(), parallel.divided():
            found[f"{number} x.grad"] = parallel.gather(x.grad) / parallel.num_processes()
        found |= {f"{number} out": out.detach(), f"{number} weight.grad": norm.weight.grad}
    return {**found, **norm.state_dict()}


class Killed(JointTraining):
    """A training of which one process is killed in its second epoch, when it starts for the first time."""

    def validate(self) -> dict[str, float]:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.epoch == 2 and parallel.process_number() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().validate()


def gradients() -> list[list[float] | None]:
    """Of a parameter that the first process reads, one that both read, and one that neither does."""
    one, both, none = parameters = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    number = parallel.process_number()
    (both * (3 * number + 0.5) + (one if number == 0 else 0)).sum().backward()
    average_gradients(parameters)
    return [None if p.grad is None else p.grad.tolist() for p in (one, both, none)]


def refused(**settings: Any) -> str:
    """The message of a training that is refused."""
    data = splits()
    model = build_model(data.spec, task_for(data), **SMALL, **settings.pop("model", {}))
    if settings.pop("plain_norm", False):
        model.pool_norm = nn.BatchNorm1d(8)
    try:
        train(model, data, config=TrainConfig(**{**LOOP, "epochs": 1, **settings}), progress=False)
    except ValueError as error:
        return str(error)
    return "not refused"


def damaged_weights(complete: Path, folder: RunFolder) -> str:
    """The message about a copy of a complete run whose weights are damaged."""
    if parallel.process_number() == 0:
        shutil.copytree(complete, folder.path)
        folder.model.write_bytes(b"")
    training = make_training("signs and averages")
    try:
        run_in_folder(lambda: training, folder, "train", {}, resume=True, model=training.model)
    except ValueError as error:
        return str(error)
    return "not refused"


def run(out: Path, molecules: Path) -> None:
    """All of it."""
    torch.set_num_threads(1)
    assert join("cpu") == torch.device("cpu") and parallel.num_processes() == 2
    number = parallel.process_number()

    found: dict[str, Any] = {"restarts": os.environ["TORCHELASTIC_RESTART_COUNT"]}
    for name, cls in (("killed", Killed), ("whole", JointTraining), ("killed", JointTraining)):
        folder = RunFolder(out / name)
        make = partial(make_training, "signs and averages", cls, folder)
        found[name] = run_in_folder(make, folder, "train", {}, resume=True)
    found["trainings"] = {name: losses(make_training(name)) for name in TRAININGS}
    found["pretrainings"] = {kind: losses(make_pretraining(kind)) for kind in ("eigenvectors", "kernels")}
    found["gradients"] = gradients()
    command = ["train", str(molecules), "--computed", "penalised_logp", "--cache", str(out / "cache"), "--epochs", "2"]
    command += ["--encoder", "none", "--model.hidden_channels", "8", "--model.num_layers", "1", "--batch_size", "12"]
    command += ["--threads", "1", "--quiet"]
    found["refused"] = {
        "batch_size": refused(batch_size=1),
        "norm": refused(plain_norm=True),
        "weights": damaged_weights(out / "whole", RunFolder(out / "damaged")),
        "folder": str(main([*command, "--out", str(out / "killed")])),
    }
    tensors = {}
    for name in NORMS:
        for rows, (first, total) in ROWS.items():
            part = slice(0, first) if number == 0 else slice(first, total)
            tensors |= {f"{name}, {rows}: {key}": value for key, value in normalized(name, rows, part).items()}
    assert main([*command, "--out", str(out / "cli")]) == 0
    (out / f"found-{number}.json").write_text(json.dumps(found))
    save_file({key: value.contiguous() for key, value in tensors.items()}, out / f"found-{number}.safetensors")


def launch(out: Path, molecules: Path) -> None:
    """All of it in two processes, as ``torchrun --standalone --nproc-per-node 2 --max-restarts 1`` starts them."""
    config = LaunchConfig(1, 1, 2, run_id="two", rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=1)
    config.start_method = "fork"
    elastic_launch(config, run)(out, molecules)
