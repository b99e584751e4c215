"""Three tasks that no encoding solves without the directions of edges: every row has a mirror image of another class.

Nodes are numbered at random. A small net reads rows of an encoding alone, of nodes or of pairs of nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tg_lpe import Encoder, GramTransformer, Graph
from tg_lpe.encoders import RRWP, DirectedWalk, MagneticLaplacian, RandomWalk

Rows = list[tuple[int, int, int]]
"""Two nodes and a class."""


def path_ends(size: int, draw: Callable[[int], int]) -> tuple[list[tuple[int, int]], Rows]:
    """Both ends of a path; the class is whether edges leave or enter."""
    return [(u, u + 1) for u in range(size - 1)], [(0, 0, 0), (size - 1, size - 1, 1)]


def cycle_neighbours(size: int, draw: Callable[[int], int]) -> tuple[list[tuple[int, int]], Rows]:
    """Both neighbours of a node on a cycle; the class is whether it is the next."""
    u = draw(size)
    return [(v, (v + 1) % size) for v in range(size)], [(u, (u + 1) % size, 0), (u, (u - 1) % size, 1)]


def signed_distances(size: int, draw: Callable[[int], int]) -> tuple[list[tuple[int, int]], Rows]:
    """A root on a path, and a node up to three steps ahead or, its mirror image, behind; six classes."""
    steps = 1 + draw(3)
    root = draw(size - steps)
    mirror = size - 1 - root
    ends = [(root, root + steps, steps + 2), (mirror, mirror - steps, 3 - steps)]
    return path_ends(size, draw)[0], ends


def rows_of(encoder: Encoder, task: Callable, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of 300 graphs of five to 20 nodes, and their classes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    indices, first, second, classes, batch = [], [], [], [], []
    for number in range(300):
        size, begin = 5 + draw(16), len(batch)
        edges, found = task(size, draw)
        label = begin + torch.randperm(size, generator=generator)
        indices.append(label[torch.tensor(edges).T])
        u, v, own = torch.tensor(found).T
        first.append(label[u])
        second.append(label[v])
        classes.append(own)
        batch += [number] * size
    graph = Graph(torch.cat(indices, 1), batch=torch.tensor(batch))
    pairs = torch.stack([torch.cat(first), torch.cat(second)])
    if task is path_ends:
        return encoder(None, graph).node[pairs[0]].detach().float(), torch.cat(classes)
    return encoder(None, graph, pairs=pairs).pair.detach().float(), torch.cat(classes)


def accuracy(encoder: Encoder, task: Callable) -> float:
    """Accuracy on 600 new rows of a net of one hidden layer."""
    (x, y), (new_x, new_y) = (rows_of(encoder.double(), task, seed) for seed in (0, 1))
    mean, std = x.mean(0), x.std(0).clamp(min=1e-4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(x.size(1), 64), nn.ReLU(), nn.Linear(64, int(y.max()) + 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net((x - mean) / std), y).backward()
        optimizer.step()
    return float((net((new_x - mean) / std).argmax(1) == new_y).float().mean())


def magnetic_gram() -> Encoder:
    """As it is before a training."""
    return GramTransformer(direction=0.05, pair_out_channels=None)


TASKS = path_ends, cycle_neighbours, signed_distances


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("make", [DirectedWalk, MagneticLaplacian, magnetic_gram])
def test_directed_encodings_solve_it(make: Callable[[], Encoder], task: Callable) -> None:
    assert accuracy(make(), task) >= 0.99


@pytest.mark.parametrize(
    ("make", "task"),
    [(RandomWalk, path_ends), (RRWP, cycle_neighbours), (RRWP, signed_distances)],
)
def test_others_guess(make: type[Encoder], task: Callable) -> None:
    """Of two mirror images with equal rows one is right at best."""
    assert accuracy(make(), task) <= 0.51
