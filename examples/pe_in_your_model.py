"""Use a positional encoding in a model made of PyG's own layers.

    python examples/pe_in_your_model.py [EPOCHS]

The graphs are rings with one chord, and the target is the distance between its ends along the ring. Without an
encoding, all nodes look alike.
"""

import sys

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

from tg_lpe import LinearTransformerPE


def ring_with_chord(size: int, end: int) -> Data:
    tail = torch.cat([torch.arange(size), torch.tensor([0])])
    head = torch.cat([(torch.arange(size) + 1) % size, torch.tensor([end])])
    edge_index = torch.stack([torch.cat([tail, head]), torch.cat([head, tail])])
    return Data(x=torch.ones(size, 1), edge_index=edge_index, y=torch.tensor([min(end, size - end) / size]))


class Network(nn.Module):
    def __init__(self, in_channels: int, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, channels)
        mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU())
        self.layer = GPSConv(channels, GINConv(mlp), heads=4, norm=None)
        self.last = nn.Linear(channels, 1)

    def forward(self, data: Data) -> torch.Tensor:
        h = self.layer(self.first(data.x), data.edge_index, data.batch)
        return self.last(global_mean_pool(h, data.batch)).squeeze(-1)


def train(graphs: list[Data], epochs: int, cut: int = 320) -> float:
    """Train on the first ``cut`` graphs and return the mean absolute error on the others."""
    torch.manual_seed(0)
    model = Network(graphs[0].num_features)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for data in DataLoader(graphs[:cut], batch_size=32, shuffle=True):
            loss = (model(data) - data.y).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    test = next(iter(DataLoader(graphs[cut:], batch_size=len(graphs))))
    return float((model.eval()(test) - test.y).abs().mean().detach())


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    sizes = torch.randint(8, 20, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    graphs = [ring_with_chord(size, 2 + number % (size - 3)) for number, size in enumerate(sizes)]
    encoded = LinearTransformerPE(k=8, attr_name=None).encode_dataset(graphs, progress=False)  # appended to x
    errors = train(graphs, epochs), train(list(encoded), epochs)
    print("mean absolute error without an encoding {:.3f}, with {:.3f}".format(*errors))
