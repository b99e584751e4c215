"""Reproduce figures 1, 2 and 3 of the paper: linear transformers trained on Laplacian problems, by number of layers.

    python benchmarks/synthetic.py [--quick] [--experiments NAME ...] [--collect] [--json FILE]

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, sections 3.5, 4.1 and 15. An experiment
is a problem, a kind of random graph and a transformer: eq. (3), or eq. (7) if its name ends in "efficient". Its models
of all depths and seeds train at once, batched along the first axis. Each seed has its own initialisation and stream of
random graphs; the test loss is the mean over the same held-out graphs for all.

An experiment writes its result to its own folder under --out, and a repeated call skips it. If the settings have
changed, it exits with an error: remove the folder, or choose another --out. In the end the results of all complete
experiments go to --json, with a figure next to it. Several processes can share the work by --experiments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _figures import draw_synthetic
from _results import write_results
from scipy import stats
from torch import Tensor
from tqdm import tqdm

from tg_lpe.checkpoints.files import read_json, write_json
from tg_lpe.data.synthetic import random_incidences
from tg_lpe.theory.efficient import Weights, efficient_layer
from tg_lpe.theory.full import full_layer, normalize_phi, normalize_rows, unit

N = 10
WIDTH = 2 * N
KINDS = ("complete", "csl")
TEST_SEED, DATA_SEED = 2**40, 2**41
ROLES = ("w_v", "w_q", "w_k", "w_r")
LAPLACIAN_PROBLEMS = ("electric", "resistive", "heat")


@dataclass(frozen=True)
class Settings:
    """How the models of an experiment are trained.

    Attributes:
        steps: updates; all of them on fresh graphs.
        graphs: graphs per update and seed.
        lr: highest learning rate, of models with one layer.
        init: standard deviation of the initial weights times the square root of their columns.
        residual: factor on it for ``W^R``.
        identity: added to the diagonals of the initial ``W^Q`` and ``W^K``.
        first: factor on ``init``, ``identity`` and ``alpha`` in the first layer, whose ``B`` is not normalised.
        alpha: mean of the initial ``alpha^Q`` and ``alpha^K`` of eq. (7).
        muon: whether the matrices of eq. (3) start in the blocks of Lemma 9 and are trained by Muon.
        lr_by_depth: the learning rate of ``L`` layers is ``lr * L ** -lr_by_depth``.
        warmup: share of the steps in which the learning rate rises; it falls to zero along a cosine after that.
    """

    steps: int
    graphs: int
    lr: float
    init: float
    residual: float
    identity: float
    first: float = 0.3
    alpha: float = 1.0
    muon: bool = False
    lr_by_depth: float = 0.5
    warmup: float = 0.1


@dataclass(frozen=True)
class Experiment:
    """A problem on a kind of graphs, for a transformer.

    Attributes:
        problem: ``"electric"``, ``"resistive"``, ``"heat"``; or ``"eigen5"``, ``"eigen10"``, trained on that many
            eigenvectors.
        kind: of the graphs.
        efficient: whether the transformer is eq. (7).
    """

    problem: str
    kind: str
    efficient: bool

    @property
    def name(self) -> str:
        return "-".join([self.problem, self.kind] + ["efficient"] * self.efficient)

    @property
    def num_edges(self) -> int:
        return N * (N - 1) // 2 if self.kind == "complete" else 2 * N

    @property
    def num_vectors(self) -> int:
        """Number of output columns that are trained."""
        return 5 if self.problem == "eigen5" else N

    @property
    def eigenvectors(self) -> bool:
        return self.problem not in LAPLACIAN_PROBLEMS

    @property
    def depths(self) -> list[int]:
        """Default depths of its models."""
        return [1, 2, 3, 4, 5, 6, 8] if self.efficient else [1, 2, 3, 4, 5, 6]

    @property
    def settings(self) -> Settings:
        """Settings found in short trials with few models."""
        complete = self.kind == "complete"
        if self.efficient and self.eigenvectors:
            return Settings(4000, graphs=16, lr=2e-2, init=0.2, residual=1.0, identity=0.0)
        if self.efficient:
            lr = 6e-2 if self.problem == "heat" else 1e-1
            return Settings(1500, graphs=16, lr=lr, init=0.5, residual=1.0, identity=0.0)
        if self.eigenvectors:
            steps = 1500 if complete else 2000
            return Settings(steps, graphs=32, lr=2.5e-2, init=0.2, residual=1.0, identity=0.0, alpha=2.5, muon=True)
        lr = 1e-2 if self.problem == "heat" else 2e-2
        return Settings(2000 if complete else 2500, graphs=32, lr=lr, init=0.1, residual=5.0, identity=1.5)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in [
        *(Experiment(p, kind, False) for p in (*LAPLACIAN_PROBLEMS, "eigen10", "eigen5") for kind in KINDS),
        *(Experiment(p, kind, True) for p in (*LAPLACIAN_PROBLEMS, "eigen10") for kind in KINDS),
    ]
}


def sample(experiment: Experiment, num_graphs: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw random graphs with demands and targets, in float64.

    Returns:
        ``B``, ``[graphs, n, d]``; demands ``Psi``, ``[graphs, n, n]``, empty for eigenvectors; targets of length one,
        ``[graphs, n, vectors]``.
    """
    b = random_incidences(experiment.kind, num_graphs, generator)
    values, vectors = torch.linalg.eigh(b @ b.mT)
    if experiment.eigenvectors:
        return b, b.new_zeros(num_graphs, N, 0), vectors[..., : experiment.num_vectors]
    psi = torch.randn(num_graphs, N, N, generator=generator, dtype=torch.float64)
    psi = unit(psi - psi.mean(-2, keepdim=True), -2)
    positive = values[:, 1:]
    spectrum = {"electric": 1 / positive, "resistive": positive.rsqrt(), "heat": torch.exp(-0.5 * positive)}
    basis = vectors[..., 1:]
    return b, psi, unit(basis @ (spectrum[experiment.problem].unsqueeze(-1) * (basis.mT @ psi)), -2)


class Stack:
    """The models of an experiment, the deepest first: layer ``l`` is run on the leading models that have it.

    Args:
        experiment: the experiment.
        depths, seeds: depths and seeds; each pair has a model.
        settings: settings of the initialisation.

    Attributes:
        models: ``(depth, seed)`` of each.
        counts: how many of them have layer ``l``.
        parameters: by name, the models on the first axis.
    """

    def __init__(self, experiment: Experiment, depths: Sequence[int], seeds: int, settings: Settings) -> None:
        self.experiment, self.seeds = experiment, seeds
        self.models = [(depth, seed) for depth in sorted(depths, reverse=True) for seed in range(seeds)]
        self.counts = [sum(depth > layer for depth, _ in self.models) for layer in range(max(depths))]
        self.depth = torch.tensor([depth for depth, _ in self.models])
        drawn = [self._draw(depth, seed, settings) for depth, seed in self.models]
        self.parameters = {
            name: torch.stack([tensors[name] for tensors in drawn if name in tensors]).requires_grad_()
            for name in drawn[0]
        }

    def _draw(self, depth: int, seed: int, settings: Settings) -> dict[str, Tensor]:
        """Draw the initial weights of a model: Gaussian, plus the offsets of the settings."""
        generator = torch.Generator().manual_seed(1000 * seed + depth)
        blocks = self.experiment.efficient or settings.muon
        height = WIDTH if blocks else self.experiment.num_edges + WIDTH
        tensors = {}
        for layer in range(depth):
            first = settings.first if layer == 0 else 1.0
            scale = settings.init * first
            for role in ROLES:
                factor = settings.residual * settings.init if role == "w_r" else scale
                draw = torch.randn(height, height, generator=generator)
                tensors[f"{layer}.{role}"] = factor / math.sqrt(height) * draw
                if role in ("w_q", "w_k"):
                    tensors[f"{layer}.{role}"] += settings.identity * first * torch.eye(height)
            if settings.muon:
                for role in ROLES:
                    alpha = settings.alpha * first if role in ("w_q", "w_k") else 0.0
                    scaled = alpha * torch.eye(self.experiment.num_edges)
                    tensors[f"{layer}.{role}"] = torch.block_diag(scaled, tensors[f"{layer}.{role}"])
            if self.experiment.efficient:
                for name in ("alpha_v", "alpha_q", "alpha_k", "alpha_r"):
                    draw = torch.randn((), generator=generator)
                    one = name in ("alpha_q", "alpha_k")
                    tensors[f"{layer}.{name}"] = (settings.alpha * first if one else 0.0) + 0.1 * first * draw
        if self.experiment.eigenvectors:
            tensors["phi"] = torch.randn(N, WIDTH, generator=generator) / math.sqrt(N)
        return tensors

    def __call__(self, b: Tensor, psi: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        """Compute the outputs of all models.

        Args:
            b, psi: ``B`` and demands of each seed, ``[seeds, graphs, n, ...]``.
            parameters: as :attr:`parameters`, of any type.

        Returns:
            The last ``n`` columns of ``Phi_L``, ``[models, graphs, n, n]``.
        """
        seeds = torch.tensor([seed for _, seed in self.models])
        graphs = b.size(1)
        b = b[seeds]
        if self.experiment.eigenvectors:
            phi = parameters["phi"].unsqueeze(1).expand(-1, graphs, -1, -1)
        else:
            phi = torch.cat([psi, torch.zeros_like(psi)], dim=-1)[seeds]
        run = self._efficient(b, phi, parameters) if self.experiment.efficient else self._full(b, phi, parameters)
        outputs = []
        for phi, count, following in zip(run, self.counts, [*self.counts[1:], 0], strict=True):
            if following < count:
                outputs.append(phi[following:, ..., -N:])
        return torch.cat(outputs[::-1])

    def _full(self, b: Tensor, phi: Tensor, parameters: dict[str, Tensor]) -> Iterator[Tensor]:
        """Yield ``Phi`` after each layer of eq. (3), for the models that have the layer."""
        how = "columns" if self.experiment.eigenvectors else "frobenius"
        z = torch.cat([b, phi], dim=-1).mT
        for layer, count in enumerate(self.counts):
            z = full_layer(z[:count], *(parameters[f"{layer}.{role}"] for role in ROLES))
            z = normalize_rows(z, self.experiment.num_edges, how, incidence=True)
            yield z.mT[..., self.experiment.num_edges :]

    def _efficient(self, b: Tensor, phi: Tensor, parameters: dict[str, Tensor]) -> Iterator[Tensor]:
        """Yield ``Phi`` after each layer of eq. (7), for the models that have the layer."""
        how = "columns" if self.experiment.eigenvectors else "frobenius"
        for layer, count in enumerate(self.counts):
            weights = [parameters[f"{layer}.{name}"] for name in Weights._fields]
            shaped = Weights(*(w.view(count, 1, *(w.shape[1:] if w.dim() > 1 else (1, 1))) for w in weights))
            b, phi = efficient_layer(b[:count], phi[:count], shaped)
            b, phi = unit(b, (-2, -1)), normalize_phi(phi, how)
            yield phi


def column_losses(experiment: Experiment, output: Tensor, target: Tensor) -> Tensor:
    """Return the squared distance of each unit column from its target, ``[..., vectors]``; eigenvectors up to sign."""
    output = unit(output[..., : target.size(-1)], -2)
    loss = (output - target).square().sum(-2)
    return torch.minimum(loss, (output + target).square().sum(-2)) if experiment.eigenvectors else loss


def orthogonal(matrices: Tensor) -> Tensor:
    """Return approximately ``U V^T`` of each ``U S V^T``, ``[..., h, h]``, by the five Newton-Schulz steps of Muon."""
    x = unit(matrices, (-2, -1))
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
    return x


class Optimizer:
    """Adam, or Muon for the matrices, with a learning rate, and gradient clipping, per model.

    A model's gradient is clipped to twice the running mean of its norm. With Muon, the blocks that add ``Phi`` to ``B``
    stay zero, as in Lemma 9, because they would change the graph.

    Args:
        stack: the models.
        muon: whether matrices follow :func:`orthogonal` momentum.
    """

    betas = (0.9, 0.99)
    epsilon = 1e-12

    def __init__(self, stack: Stack, muon: bool) -> None:
        self.parameters, self.num_edges = stack.parameters, stack.experiment.num_edges
        self.matrices = {name for name in stack.parameters if muon and name != "phi"}
        self.state = {
            f"{moment}.{name}": torch.zeros_like(p) for moment in ("m", "v") for name, p in stack.parameters.items()
        }
        self.state["norm"] = torch.zeros(len(stack.models))

    @torch.no_grad()
    def step(self, number: int, lr: Tensor) -> None:
        """Make update ``number``, from one, with learning rates ``[models]``."""
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        square = torch.zeros_like(self.state["norm"])
        for gradient in gradients.values():
            square[: len(gradient)] += gradient.flatten(1).square().sum(1) if gradient.dim() > 1 else gradient.square()
        norm = square.sqrt()
        usual = self.state["norm"] / (1 - 0.95 ** (number - 1)) if number > 1 else norm
        clip = (2 * usual / norm.clamp(min=1e-30)).clamp(max=1.0)
        self.state["norm"].lerp_(norm * clip, 0.05)
        first, second = self.betas
        for name, gradient in gradients.items():
            m, v = self.state[f"m.{name}"], self.state[f"v.{name}"]
            shape = (-1, *[1] * (gradient.dim() - 1))
            gradient.mul_(clip[: len(gradient)].view(shape))
            m.lerp_(gradient, 1 - first)
            v.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            if name in self.matrices:
                update = 0.2 * math.sqrt(m.size(-1)) * orthogonal(m)
                update[:, : self.num_edges, self.num_edges :] = 0.0
            else:
                update = m / (v / (1 - second**number)).sqrt_().add_(self.epsilon) / (1 - first**number)
            self.parameters[name].sub_(update * lr[: len(m)].view(shape))
            self.parameters[name].grad = None


def schedule(settings: Settings, step: int) -> float:
    """Return the factor on the learning rate at ``step``, from zero."""
    warmup = max(1.0, settings.warmup * settings.steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (settings.steps - warmup)))


@torch.no_grad()
def evaluate(stack: Stack, num_graphs: int) -> Tensor:
    """Return the test loss of each model and column, ``[models, vectors]``, in float64."""
    b, psi, target = sample(stack.experiment, num_graphs, torch.Generator().manual_seed(TEST_SEED))
    parameters = {name: p.double() for name, p in stack.parameters.items()}
    total: Tensor | float = 0.0
    for part in torch.arange(num_graphs).split(100):
        every = (stack.seeds, -1, -1, -1)  # one set of graphs for all seeds
        output = stack(b[part].expand(every), psi[part].expand(every), parameters)
        total = total + column_losses(stack.experiment, output, target[part]).sum(1)
    assert isinstance(total, Tensor)
    return total / num_graphs


def train(
    experiment: Experiment, settings: Settings, depths: Sequence[int], seeds: int, test_graphs: int, file: Path
) -> None:
    """Train an experiment's models and write its result, unless it is there.

    Raises:
        SystemExit: if the file holds a result with other settings.
    """
    chosen = {"depths": sorted(depths), "seeds": seeds, "test_graphs": test_graphs, **asdict(settings)}
    if file.exists():
        if (known := read_json(file)["settings"]) != chosen:
            raise SystemExit(f"{file} has other settings, {known}, not {chosen}; remove it first")
        return

    start, stack = time.perf_counter(), Stack(experiment, depths, seeds, settings)
    optimizer = Optimizer(stack, settings.muon)
    generators = [torch.Generator().manual_seed(DATA_SEED + seed) for seed in range(seeds)]
    base = settings.lr * stack.depth.float() ** -settings.lr_by_depth
    seed_of = torch.tensor([seed for _, seed in stack.models])
    for step in tqdm(range(settings.steps), desc=experiment.name):
        drawn = [sample(experiment, settings.graphs, generator) for generator in generators]
        b, psi, target = (torch.stack(part).float() for part in zip(*drawn, strict=True))
        losses = column_losses(experiment, stack(b, psi, stack.parameters), target[seed_of]).mean((1, 2))
        losses.sum().backward()
        optimizer.step(step + 1, base * schedule(settings, step))
    columns = evaluate(stack, test_graphs)
    shape = (len(set(depths)), seeds, experiment.num_vectors)
    result = {
        "experiment": experiment.name,
        **asdict(experiment),
        "settings": chosen,
        "loss": columns.mean(1).view(shape[:2]).flip(0).tolist(),
        "loss_by_vector": columns.view(shape).flip(0).tolist() if experiment.eigenvectors else None,
        "seconds": time.perf_counter() - start,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, result)


def slope(depths: Sequence[int], losses: Sequence[Sequence[float]]) -> float:
    """Fit the slope of ``ln(loss)`` against depth over all depths and seeds, from losses by depth and seed."""
    x = np.repeat(depths, [len(row) for row in losses])
    return float(stats.linregress(x, np.log(np.concatenate([np.asarray(row) for row in losses]))).slope)


def curves(experiment: Experiment) -> Iterator[tuple[str, str, list[int] | None]]:
    """Return figure and panel, name, and columns (``None`` for all) of every curve of an experiment."""
    place = {"electric": "a", "resistive": "b", "heat": "c", "eigen10": "d"}
    if experiment.efficient:
        name = "loss_1-10" if experiment.eigenvectors else f"loss_{experiment.problem}"
        yield f"3{place[experiment.problem]}", name, None
    elif not experiment.eigenvectors:
        yield f"1{place[experiment.problem]}", f"loss_{experiment.problem}", None
    else:
        total, separate = {"eigen5": ("2a", "2b 2c"), "eigen10": ("2d", "2e 2f")}[experiment.problem]
        yield total, f"loss_1-{experiment.num_vectors}", None
        panel = separate.split()[KINDS.index(experiment.kind)]
        for column in range(1, experiment.num_vectors):
            yield panel, f"loss_{column + 1}", [column]


def collect(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each curve of each panel."""
    rows = []
    for result in results:
        experiment = EXPERIMENTS[result["experiment"]]
        depths = result["settings"]["depths"]
        for place, name, columns in curves(experiment):
            losses = result["loss"]
            if columns is not None:
                losses = [[vectors[columns[0]] for vectors in row] for row in result["loss_by_vector"]]
            rows.append(
                {
                    "figure": int(place[0]),
                    "panel": place,
                    "graphs": experiment.kind,
                    "equation": 7 if experiment.efficient else 3,
                    "trained_on": experiment.problem,
                    "curve": name,
                    "depths": depths,
                    "loss": losses,
                    "slope": slope(depths, losses),
                    "seconds": result["seconds"],
                }
            )
    return sorted(rows, key=lambda row: row["panel"])


def main() -> None:
    parser = Parser(__doc__, "few steps, two depths and seeds, in a temporary folder", "synthetic.json")
    parser.add_argument("--experiments", nargs="+", metavar="NAME", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_options("--collect")
    args = parser.parse_args()
    files = {name: args.out / name / "result.json" for name in EXPERIMENTS}
    for name in [] if args.collect else args.experiments:
        experiment = EXPERIMENTS[name]
        settings, depths, seeds = experiment.settings, experiment.depths, 3
        if args.quick:
            settings, depths, seeds = replace(settings, steps=10), [1, 2], 2
        train(experiment, settings, depths, seeds, 100 if args.quick else 2000, files[name])
    complete = [read_json(file) for file in files.values() if file.exists()]
    rows = collect(complete)
    write_results(args.json, rows, settings={result["experiment"]: result["settings"] for result in complete})
    draw_synthetic(rows, args.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
