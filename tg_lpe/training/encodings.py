"""What each positional encoding means for training: something computed beforehand, or an encoder trained jointly."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset

from tg_lpe.data.storage import iterate_chunks, with_edge_attribute, with_node_attribute
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.gram_transformer import GramTransformer
from tg_lpe.encoders.linear_transformer import LinearTransformer
from tg_lpe.encoders.registry import load_encoder
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.spectral import laplacian_eigenvectors, random_walk_probabilities
from tg_lpe.nn.pair_forms import pair_forms
from tg_lpe.training.config import TrainConfig

PE_ATTRIBUTE = "pe"
EDGE_PE_ATTRIBUTE = "edge_pe"
CHUNK = 2000


def attach_encoding(config: TrainConfig, dataset: InMemoryDataset) -> InMemoryDataset:
    """A copy of the dataset with the encoding that can be computed beforehand, where it is such a one.

    Returns:
        With ``data.pe``, float32 ``[num_nodes, width]``, and if edges are encoded ``data.edge_pe``, float32
        ``[num_edges, width]``.
    """
    if config.pe not in ("laplacian", "random-walk"):
        return dataset
    width, nodes, edges = config.width or 0, [], []
    for chunk in iterate_chunks(dataset, CHUNK):
        graph = Incidence(chunk.edge_index, chunk.num_nodes, batch=chunk.batch, num_graphs=chunk.num_graphs)
        if config.pe == "laplacian":
            nodes.append(laplacian_eigenvectors(graph, width)[0].float())
            edges.append(pair_forms(nodes[-1], chunk.edge_index))
        else:
            node, edge = random_walk_probabilities(graph, width)
            nodes.append(node.float())
            edges.append(graph.spread_to_listings(edge).float())
    dataset = with_node_attribute(dataset, PE_ATTRIBUTE, torch.cat(nodes))
    return with_edge_attribute(dataset, EDGE_PE_ATTRIBUTE, torch.cat(edges)) if config.edge_pe else dataset


def edge_width(config: TrainConfig) -> int | None:
    """Channels of the edge encoding that :func:`attach_encoding` makes; ``None`` for none."""
    if not config.edge_pe or config.pe not in ("laplacian", "random-walk"):
        return None
    return (config.width or 0) * (2 if config.pe == "laplacian" else 1)


def flip_signs(pe: Tensor, batch: Tensor, num_graphs: int, generator: torch.Generator) -> Tensor:
    """Eigenvectors ``[num_nodes, k]`` with a random sign per graph and column: either sign is as good."""
    signs = torch.randint(0, 2, (num_graphs, pe.size(1)), generator=generator) * 2 - 1
    return pe * signs.to(pe.device, pe.dtype)[batch]


def build_encoder(config: TrainConfig, num_node_types: int, num_edge_types: int, max_nodes: int) -> Encoder | None:
    """The linear transformer of a run, pretrained if the settings name one; ``None`` for other encodings.

    Args:
        config: the run's settings.
        num_node_types: for ``features`` probes and ground conductances.
        num_edge_types: for conductances.
        max_nodes: largest graph, for ``learned`` probes.

    Raises:
        ValueError: if a pretrained encoder does not fit the settings.
    """
    if config.pe != "linear-transformer":
        return None
    if config.encoder is not None:
        return _pretrained(config.encoder, config, num_node_types, num_edge_types)
    if config.uses_gram:
        learned = config.conductances == "learned"
        return GramTransformer(
            out_channels=config.pe_dim,
            edge_out_channels=config.pe_dim if config.edge_pe else 0,
            num_filters=config.num_filters,
            num_layers=config.encoder_layers,
            num_squarings=config.num_squarings,
            basis=config.basis,
            probes=config.probes,
            num_edge_types=num_edge_types if learned else None,
            num_node_types=num_node_types if learned and (config.ground or config.end_features) else None,
            learned_conductances=learned,
            ground=config.ground,
            end_features=config.end_features,
        )
    return LinearTransformer(
        k=config.k,
        out_channels=config.width,
        probes=config.probes,
        num_node_types=num_node_types if config.probes == "features" else None,
        max_nodes=max_nodes if config.probes == "learned" else None,
    )


def _pretrained(name: str, config: TrainConfig, num_node_types: int, num_edge_types: int) -> Encoder:
    encoder = load_encoder(name)
    if config.pe_dim not in (None, encoder.out_channels):
        raise ValueError(f"encoder {name!r} gives {encoder.out_channels} channels, pe_dim is {config.pe_dim}")
    arguments = encoder.config_dict()
    for what, data in (("node", num_node_types), ("edge", num_edge_types)):
        has = arguments.get(f"num_{what}_types")
        if has not in (None, data):
            raise ValueError(
                f"encoder {name!r} knows {has} {what} types, the data has {data}: pretrain one on this data, "
                f"or take one that reads no {what} types"
            )
    return (encoder if config.edge_pe else encoder.without_edges()).train()
