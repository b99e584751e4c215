"""Pretrain an encoder on graphs without labels, then use it in a model.

    python examples/pretrain.py

The encoder learns to predict heat kernels and effective resistances, which follow from the graph.
"""

import argparse

import torch
from torch_geometric.data import Data

from tg_lpe import GramTransformer, GraphTransformer
from tg_lpe.app.training import KernelPretrainConfig, KernelPretraining
from tg_lpe.app.training.kernels import kernel_channels
from tg_lpe.data import GraphSplits, random_split


def random_tree(size: int, generator: torch.Generator) -> Data:
    child = torch.arange(1, size)
    parent = (torch.rand(size - 1, generator=generator) * child).long()
    return Data(edge_index=torch.stack([torch.cat([child, parent]), torch.cat([parent, child])]), num_nodes=size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--graphs", type=int, default=500)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    trees = [random_tree(5 + number % 20, generator) for number in range(args.graphs)]
    config = KernelPretrainConfig(epochs=args.epochs, batch_size=16)
    width = kernel_channels(config.kernels)
    encoder = GramTransformer(width, width, num_layers=8)
    splits = GraphSplits.of(*random_split(trees, seed=0))
    result = KernelPretraining(config, encoder, splits, progress=False).fit()
    print(f"unexplained share of the variance of the kernels: {result['val_loss']:.3f}")

    model = GraphTransformer(encoder=encoder, hidden_channels=32, num_layers=2, heads=4)
    tree = trees[0]
    print("prediction of a model on this encoder:", model(None, tree.edge_index, num_nodes=tree.num_nodes))
