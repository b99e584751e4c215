"""The linear transformer's encoding as a PyTorch Geometric transform."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform
from tqdm import tqdm

from tg_lpe.checkpoint import module_digest
from tg_lpe.incidence import Incidence
from tg_lpe.linear_transformer import LinearTransformer
from tg_lpe.transforms.storage import is_collated, iterate_chunks, with_node_attribute

DEFAULT_ENCODER = "eigen-k8"
CHUNK = 4096


@functional_transform("linear_transformer_pe")
class LinearTransformerPE(BaseTransform):
    r"""Adds the positional encoding of a linear transformer to a graph (functional name: ``linear_transformer_pe``).

    Without further arguments it is the encoder ``eigen-k8`` that ships with the package, pretrained on molecules to
    approximate the first eigenvectors of the normalised Laplacian; ``k`` says how many of its columns are written.
    It is defined on every graph: a single node, no edges, fewer nodes than ``k``, several components. The same graph
    gets the same encoding alone and in any batch. `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_.

    Reads ``edge_index``, ``num_nodes``, ``edge_weight`` (conductances) where there is one, and ``x`` if the encoder's
    probes are features. Works on ``Data`` and ``Batch``, on their device, without gradient.

    Args:
        k: number of columns to write; all of the encoder's if absent.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` appends the columns to ``x``.
        encoder: the encoder to use in place of the shipped one. A frozen copy is taken: training it further later, or
            moving it, changes nothing here.
        edge_weight: name of the attribute that holds conductances, ``None`` to ignore weights.

    Raises:
        ValueError: if the encoder has fewer than ``k`` channels.
        TypeError: if ``encoder`` is not a :class:`~tg_lpe.LinearTransformer`.
    """

    def __init__(
        self,
        k: int | None = None,
        attr_name: str | None = "linear_transformer_pe",
        encoder: LinearTransformer | None = None,
        edge_weight: str | None = "edge_weight",
    ) -> None:
        if encoder is not None and not isinstance(encoder, LinearTransformer):
            raise TypeError(
                f"encoder must be a LinearTransformer, got {type(encoder).__name__}; "
                "LinearTransformerPE.from_pretrained takes a name or a folder"
            )
        encoder = LinearTransformer.from_pretrained(DEFAULT_ENCODER) if encoder is None else copy.deepcopy(encoder)
        self.k = encoder.out_channels if k is None else k
        if not 1 <= self.k <= encoder.out_channels:
            raise ValueError(
                f"k must lie in 1..{encoder.out_channels}, the channels of the encoder, got {k}; "
                "pass encoder=LinearTransformer(k=..., out_channels=...) for more"
            )
        self.attr_name = attr_name
        self.edge_weight = edge_weight
        self._on_device = {torch.device("cpu"): encoder.cpu().freeze()}
        self._reads_features = encoder.probe_kind == "features"
        self._digest = module_digest(encoder)

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path, k: int | None = None, **kwargs: Any) -> LinearTransformerPE:
        """The transform of a shipped, saved or published encoder.

        Args:
            name_or_dir: as :meth:`LinearTransformer.from_pretrained <tg_lpe.LinearTransformer.from_pretrained>`.
            k: number of columns to write.
            kwargs: as the constructor.
        """
        return cls(k, encoder=LinearTransformer.from_pretrained(name_or_dir), **kwargs)

    def forward(self, data: Data) -> Data:
        """Write the encoding into ``data``; calling the transform does so on a copy."""
        if not isinstance(data, Data):
            raise TypeError(f"LinearTransformerPE takes Data or Batch of one node type, got {type(data).__name__}")
        if data.edge_index is None:
            raise ValueError(
                f"LinearTransformerPE needs edge_index, got data with {data.keys()}; for a graph without edges it is "
                "an empty [2, 0] tensor, and T.ToSparseTensor, which removes it, comes after this transform"
            )
        weight = data.get(self.edge_weight) if self.edge_weight is not None else None
        pe = self._encode(
            data.edge_index,
            data.num_nodes,
            data.get("batch"),  # also of a Data that says which nodes belong together
            weight,
            data.get("x") if self._reads_features else None,
            data.num_graphs if isinstance(data, Batch) else None,
        )
        return self._write(data, pe)

    def _write(self, data: Data, pe: Tensor) -> Data:
        """Put the encoding where ``attr_name`` says."""
        if self.attr_name is not None:
            data[self.attr_name] = pe
        elif data.x is None:
            data.x = pe
        else:
            x = data.x.unsqueeze(-1) if data.x.dim() == 1 else data.x
            data.x = torch.cat([x.to(pe.dtype), pe], dim=-1)
        return data

    def encode_dataset(
        self, dataset: InMemoryDataset | Sequence[Data], progress: bool = True
    ) -> InMemoryDataset | list[Data]:
        """Encode all graphs of a dataset in large batches, many times faster than one by one.

        Args:
            dataset: a PyG dataset, or a sequence of ``Data``; it is not changed.
            progress: whether to show a progress bar.

        Returns:
            For an ``InMemoryDataset`` (whole, without a transform of its own) a dataset of the same class that shares
            its storage and has the encoding as one more attribute; otherwise a list of ``Data``.
        """
        if len(dataset) == 0:
            return dataset if isinstance(dataset, InMemoryDataset) else []
        collated = is_collated(dataset) and self.attr_name is not None
        # What is encoded is what is returned: a dataset's own transform may give another graph at each access.
        graphs = [] if collated else [copy.copy(dataset[i]) for i in range(len(dataset))]
        carried = ("x",) * self._reads_features + (() if self.edge_weight is None else (self.edge_weight,))
        parts: list[Tensor] = []
        with tqdm(total=len(dataset), desc="encoding", unit="graph", disable=not progress) as bar:
            for chunk in iterate_chunks(dataset if collated else graphs, CHUNK, carried):
                weight = chunk.attributes.get(self.edge_weight) if self.edge_weight is not None else None
                parts.append(
                    self._encode(
                        chunk.edge_index,
                        chunk.num_nodes,
                        chunk.batch,
                        weight,
                        chunk.attributes.get("x"),
                        chunk.num_graphs,
                    )
                )
                bar.update(chunk.num_graphs)
        pe = torch.cat(parts)
        if collated:
            return with_node_attribute(dataset, self.attr_name, pe)  # type: ignore[arg-type]
        for data, rows in zip(graphs, pe.split([data.num_nodes for data in graphs]), strict=True):
            self._write(data, rows)
        return graphs

    def _encode(
        self,
        edge_index: Tensor,
        num_nodes: int | None,
        batch: Tensor | None,
        weight: Tensor | None,
        x: Tensor | None,
        num_graphs: int | None,
    ) -> Tensor:
        encoder = self._on_device.get(edge_index.device)
        if encoder is None:
            master = self._on_device[torch.device("cpu")]
            encoder = self._on_device[edge_index.device] = copy.deepcopy(master).to(edge_index.device).freeze()
        with torch.inference_mode():
            graph = Incidence(edge_index, num_nodes, edge_weight=weight, batch=batch, num_graphs=num_graphs)
            pe = encoder.encode(graph, x)
        return pe[:, : self.k].clone()  # outside of inference mode: a tensor that autograd may use

    def __repr__(self) -> str:
        """Changes when anything does that changes the output: PyG compares it to detect a stale cache."""
        return (
            f"{type(self).__name__}(k={self.k}, attr_name={self.attr_name!r}, edge_weight={self.edge_weight!r}, "
            f"encoder={self._digest})"
        )
