"""Predict hidden edges of a graph: split first, then encode the training edges.

python examples/link_prediction.py [--nodes 2000] [--epochs 100]
"""

import argparse

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import to_undirected

from tg_lpe import AddPositionalEncoding
from tg_lpe.app.training.metrics import hits_at, roc_auc
from tg_lpe.data import random_link_split
from tg_lpe.encoders import Encoder, Positions, RandomWalk


class LinkModel(nn.Module):
    """Score a pair of nodes by the inner product of their features after two SAGE layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(channels), SAGEConv(channels, 64), SAGEConv(64, 64)

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor) -> Tensor:
        h = self.second(self.first(self.norm(x), edge_index).relu(), edge_index)
        return (h[pairs[0]] * h[pairs[1]]).sum(1)


def blocks(num_nodes: int, generator: torch.Generator) -> Data:
    """Draw a graph of ten communities: a node has about eight neighbours in its own and two in the others."""
    u, v = torch.randint(num_nodes, (2, 5 * num_nodes), generator=generator)
    inside = torch.rand(len(u), generator=generator) < 0.8
    size = num_nodes // 10
    v = torch.where(inside, (u // size * size + v % size).clamp(max=num_nodes - 1), v)
    kept = u != v
    return Data(edge_index=to_undirected(torch.stack([u[kept], v[kept]])), num_nodes=num_nodes)


def test_figures(data: Data, encoder: Encoder, epochs: int, seed: int) -> tuple[float, float]:
    encode = AddPositionalEncoding(encoder)
    train, val, test = random_link_split(data, seed)
    x = encode(train).pe  # encodes only the training edges; used for all three parts
    torch.manual_seed(seed)
    model, generator = LinkModel(x.size(1)), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    best, figures = 0.0, (0.0, 0.0)
    for _ in range(epochs):
        edges = train.edge_label_index
        pairs = torch.cat([edges, torch.randint(data.num_nodes, edges.shape, generator=generator)], dim=1)
        labels = (torch.arange(pairs.size(1)) < edges.size(1)).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model.train()(x, train.edge_index, pairs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.eval()
            validation = roc_auc(model(x, train.edge_index, val.edge_label_index), val.edge_label)
            if validation > best:
                best, scores = validation, model(x, train.edge_index, test.edge_label_index)
                figures = roc_auc(scores, test.edge_label), hits_at(scores, test.edge_label, 50)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    data = blocks(args.nodes, torch.Generator().manual_seed(0))
    for encoder in (RandomWalk(16), Positions(16)):
        auc, hits = test_figures(data, encoder, args.epochs, seed=0)
        print(f"{type(encoder).__name__}: ROC-AUC {auc:.3f}, hits@50 {hits:.3f}")
