"""Positional encodings as a node encoder of PyTorch Geometric's GraphGym: ``import tg_lpe.graphgym`` registers it.

In a configuration::

    dataset:
      node_encoder: True
      node_encoder_name: tg_lpe
    tg_lpe:
      encoder: GramTransformer       # a class of tg_lpe.encoders, trained with the model
      arguments: {out_channels: 8}   # its constructor's arguments
      pretrained: ''                 # the name of a checkpoint instead, which is not trained further
      features: linear               # embedding of x: linear, none, or the name of another node encoder

GraphGym needs yacs and pytorch_lightning: ``pip install torch_geometric[graphgym]``.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg

from tg_lpe.encoders import load_encoder, make_encoder, without_edges
from tg_lpe.encoders.precompute import precomputed_of
from tg_lpe.graph.graph import counts_of

NAME = "tg_lpe"
"""Name of the node encoder and of its section of the configuration."""


def set_config(config: Any) -> None:
    """Add the section with its defaults to GraphGym's configuration."""
    from yacs.config import CfgNode

    section = CfgNode({"encoder": "GramTransformer", "pretrained": "", "features": "linear"})
    section.arguments = CfgNode(new_allowed=True)
    config[NAME] = section


class EncodedNodes(nn.Module):
    """Node encoder of GraphGym: the sum of linear maps of the features and of the positional encoding.

    Args:
        emb_dim: width of the result.

    Raises:
        ValueError: if the encoder or ``features`` is unknown.
    """

    def __init__(self, emb_dim: int) -> None:
        super().__init__()
        options = cfg[NAME]
        if options.pretrained:
            self.encoder = load_encoder(options.pretrained).requires_grad_(False).eval()
        else:
            self.encoder = make_encoder({"class": options.encoder, **options.arguments})
        self.encoder = without_edges(self.encoder)
        known = {"none": None, "linear": lambda width: _Linear(cfg.share.dim_in, width), **register.node_encoder_dict}
        known.pop(NAME, None)
        if options.features not in known:
            raise ValueError(f"{NAME}.features must be one of {sorted(known)}, got {options.features!r}")
        make = known[options.features]
        self.features = None if make is None else make(emb_dim)
        self.embedding = nn.Linear(self.encoder.out_channels, emb_dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x`` by the sum, ``[num_nodes, emb_dim]``."""
        features = {name: batch.get(name) for name in ("x", "edge_attr", "edge_weight") if name in self.encoder.reads}
        num_nodes, num_graphs = counts_of(batch)
        encoding = self.encoder(
            features.get("x"),
            batch.edge_index,
            features.get("edge_attr"),
            batch.get("batch"),
            features.get("edge_weight"),
            num_nodes=num_nodes,
            num_graphs=num_graphs,
            precomputed=precomputed_of(batch),
        )
        pe = self.embedding(encoding.node)
        if self.features is not None:
            batch = self.features(batch)
            pe = pe + batch.x
        batch.x = pe
        return batch


class _Linear(nn.Linear):
    """Linear map of real features, with the interface of a node encoder."""

    def forward(self, batch: Batch) -> Batch:  # type: ignore[override]
        x = batch.x
        if x is None or not x.is_floating_point() or x.shape[1:] != (self.in_features,):
            got = None if x is None else f"{x.dtype} {list(x.shape)}"
            raise ValueError(
                f"{NAME}.features='linear' needs real x of shape [num_nodes, {self.in_features}], got {got}; 'none' is "
                "for graphs without features, and a node encoder such as 'Integer' or 'Atom' for types"
            )
        batch.x = super().forward(x)
        return batch


register.register_config(NAME, set_config)
register.register_node_encoder(NAME, EncodedNodes)
if cfg is not None:  # None without yacs
    set_config(cfg)
