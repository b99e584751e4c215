"""Encode one graph of many nodes, and store the encodings in it for any sampler.

python examples/one_large_graph.py [--nodes 1000000]
"""

import argparse
import time

import torch
from torch_geometric.data import Data

from tg_lpe import AddPositionalEncoding, Encoder, LinearTransformer
from tg_lpe.data.synthetic import random_regular_edges
from tg_lpe.encoders import RandomWalk, load_encoder


def encode(data: Data, name: str, encoder: Encoder) -> Data:
    start = time.perf_counter()
    data = AddPositionalEncoding(encoder, attr_name=name)(data)
    print(f"{name}: {tuple(data[name].shape)} in {time.perf_counter() - start:.1f} s")
    return data


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=100_000)
    num_nodes = parser.parse_args().nodes
    edges = random_regular_edges(num_nodes, 6, torch.Generator().manual_seed(0))
    data = Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=num_nodes)
    data = encode(data, "gram_pe", load_encoder("gram-k8"))  # exact for short walks; estimates long ones and warns
    data = encode(data, "linear_pe", LinearTransformer(k=8))  # time linear in the edges; train its weights with a task
    if num_nodes <= 20_000:  # exact: on this graph, time grows with nodes times edges
        data = encode(data, "walk_pe", RandomWalk(8))
    print(data)  # NeighborLoader slices the encodings together with the nodes
