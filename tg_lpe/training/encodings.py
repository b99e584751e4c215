"""What each positional encoding means for training: something computed beforehand, or an encoder trained jointly."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset

from tg_lpe.incidence import Incidence
from tg_lpe.linear_transformer import LinearTransformer
from tg_lpe.probes import FeatureProbes
from tg_lpe.spectral import laplacian_eigenvectors, random_walk_probabilities
from tg_lpe.training.config import TrainConfig
from tg_lpe.transforms.storage import iterate_chunks, with_node_attribute

PE_ATTRIBUTE = "pe"
CHUNK = 2000


def attach_encoding(config: TrainConfig, dataset: InMemoryDataset) -> InMemoryDataset:
    """A copy of the dataset with ``data.pe``, float32 ``[num_nodes, pe_dim]``, where the encoding is a fixed one."""
    if config.pe not in ("laplacian", "random-walk"):
        return dataset
    parts = []
    for chunk in iterate_chunks(dataset, CHUNK):
        graph = Incidence(chunk.edge_index, chunk.num_nodes, batch=chunk.batch, num_graphs=chunk.num_graphs)
        if config.pe == "laplacian":
            parts.append(laplacian_eigenvectors(graph, config.pe_dim)[0])
        else:
            parts.append(random_walk_probabilities(graph, config.pe_dim))
    return with_node_attribute(dataset, PE_ATTRIBUTE, torch.cat(parts).float())


def flip_signs(pe: Tensor, batch: Tensor, num_graphs: int, generator: torch.Generator) -> Tensor:
    """Eigenvectors ``[num_nodes, k]`` with a random sign per graph and column: either sign is as good."""
    signs = torch.randint(0, 2, (num_graphs, pe.size(1)), generator=generator) * 2 - 1
    return pe * signs.to(pe.device, pe.dtype)[batch]


def build_encoder(config: TrainConfig, num_node_types: int, max_nodes: int) -> LinearTransformer | None:
    """The linear transformer of a run, pretrained if the settings name one; ``None`` for other encodings.

    Args:
        config: the run's settings.
        num_node_types: for ``features`` probes.
        max_nodes: largest graph, for ``learned`` probes.

    Raises:
        ValueError: if a pretrained encoder does not fit the settings.
    """
    if config.pe != "linear-transformer":
        return None
    if config.encoder is None:
        return LinearTransformer(
            k=config.k,
            out_channels=config.pe_dim,
            probes=config.probes,
            num_node_types=num_node_types if config.probes == "features" else None,
            max_nodes=max_nodes if config.probes == "learned" else None,
        )
    encoder = LinearTransformer.from_pretrained(config.encoder)
    if encoder.out_channels != config.pe_dim:
        raise ValueError(f"encoder {config.encoder!r} gives {encoder.out_channels} channels, pe_dim is {config.pe_dim}")
    if isinstance(encoder.probes, FeatureProbes) and encoder.probes.num_node_types != num_node_types:
        raise ValueError(
            f"encoder {config.encoder!r} starts from {encoder.probes.num_node_types} node types, the data has "
            f"{num_node_types}: pretrain one on this data, or take one with random probes"
        )
    return encoder.train()
