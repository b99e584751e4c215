"""Any encoder as a PyTorch Geometric transform."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform
from tqdm import tqdm

from tg_lpe.data.storage import is_collated, iterate_chunks, with_edge_attribute, with_node_attribute
from tg_lpe.encoders.base import Encoder, Encoding, frozen_copy
from tg_lpe.encoders.registry import load_encoder
from tg_lpe.graph.incidence import Incidence
from tg_lpe.hub.checkpoints import module_digest
from tg_lpe.transforms.attributes import write_node_encoding

CHUNK = 4096
"""Graphs that are encoded at once, at most."""

CHUNK_PAIRS = 2**22
"""Pairs of nodes, graph by graph, that are encoded at once, at most: a matrix of each filter has as many entries."""

T = TypeVar("T", bound="AddPositionalEncoding")


@functional_transform("add_positional_encoding")
class AddPositionalEncoding(BaseTransform):
    """Adds the positional encoding of any encoder to a graph (functional name: ``add_positional_encoding``).

    Works on ``Data`` and ``Batch``, on their device, without gradient. The same graph gets the same encoding alone and
    in any batch. Reads ``edge_index``, ``num_nodes``, edge weights where there are some, and ``x`` or ``edge_attr`` if
    the encoder does. :meth:`encode_dataset` encodes whole datasets in large batches.

    Args:
        encoder: the encoder. A frozen copy is taken: training it further later, or moving it, changes nothing here.
        attr_name: attribute to write, ``[num_nodes, out_channels]``; ``None`` appends the columns to ``x``.
        edge_attr_name: attribute to write for edges, ``[num_edges, edge_out_channels]``, one row for each column of
            ``edge_index``; ``None`` for no edge encoding, which is then not computed either.
        edge_weight: name of the attribute that holds conductances, ``None`` to ignore weights.

    Raises:
        TypeError: if ``encoder`` is no :class:`~tg_lpe.Encoder`.
        ValueError: if edges are to be encoded and the encoder does not encode them, or both attributes have one name.
    """

    def __init__(
        self,
        encoder: Encoder,
        attr_name: str | None = "pe",
        edge_attr_name: str | None = None,
        edge_weight: str | None = "edge_weight",
    ) -> None:
        if not isinstance(encoder, Encoder):
            raise TypeError(
                f"encoder must be a tg_lpe.Encoder, got {type(encoder).__name__}; "
                f"{type(self).__name__}.from_pretrained takes a name or a folder"
            )
        if edge_attr_name is None:
            encoder = encoder.without_edges()
        elif not encoder.edge_out_channels:
            raise ValueError(
                f"edge_attr_name={edge_attr_name!r} needs an encoder with edge channels, such as a GramTransformer has "
                f"unless edge_out_channels=0, got a {type(encoder).__name__} of edge_out_channels=0"
            )
        elif edge_attr_name == attr_name:
            raise ValueError(f"attr_name and edge_attr_name must differ, got {attr_name!r} for both")
        self.attr_name = attr_name
        self.edge_attr_name = edge_attr_name
        self.edge_weight = edge_weight
        self.out_channels = encoder.out_channels
        frozen = frozen_copy(encoder)
        self._on_device = {torch.device("cpu"): frozen}
        self._features = tuple(name for name in ("x", "edge_attr") if name in encoder.reads)
        self._described = _describe(frozen)

    @classmethod
    def from_pretrained(cls: type[T], name_or_dir: str | Path, **kwargs: Any) -> T:
        """The transform of a shipped, saved or published encoder.

        Args:
            name_or_dir: as :meth:`Encoder.from_pretrained <tg_lpe.Encoder.from_pretrained>`.
            kwargs: the constructor's other arguments.
        """
        return cls(encoder=load_encoder(name_or_dir), **kwargs)

    def forward(self, data: Data) -> Data:
        """Write the encoding into ``data``; calling the transform does so on a copy."""
        name = type(self).__name__
        if not isinstance(data, Data):
            raise TypeError(f"{name} takes Data or Batch of one node type, got {type(data).__name__}")
        if data.edge_index is None:
            raise ValueError(
                f"{name} needs edge_index, got data with {data.keys()}; for a graph without edges it is "
                "an empty [2, 0] tensor, and T.ToSparseTensor, which removes it, comes after this transform"
            )
        encoding = self._encode(
            data.edge_index,
            data.num_nodes,
            data.get("batch"),  # also of a Data that says which nodes belong together
            data.num_graphs if isinstance(data, Batch) else None,
            data.get,
        )
        return self._write(data, encoding)

    def _write(self, data: Data, encoding: Encoding) -> Data:
        """Put the encoding where ``attr_name`` and ``edge_attr_name`` say."""
        write_node_encoding(data, self.attr_name, encoding.node)
        if self.edge_attr_name is not None:
            data[self.edge_attr_name] = encoding.edge
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
            its storage and has the encoding as one more attribute, or two with that of the edges; otherwise a list of
            ``Data``.
        """
        if len(dataset) == 0:
            return dataset if isinstance(dataset, InMemoryDataset) else []
        collated = is_collated(dataset) and self.attr_name is not None
        # What is encoded is what is returned: a dataset's own transform may give another graph at each access.
        graphs = [] if collated else [copy.copy(dataset[i]) for i in range(len(dataset))]
        carried = self._features + (() if self.edge_weight is None else (self.edge_weight,))
        parts: list[Encoding] = []
        sizes: list[int] = []
        with tqdm(total=len(dataset), desc="encoding", unit="graph", disable=not progress) as bar:
            for chunk in iterate_chunks(dataset if collated else graphs, CHUNK, carried, CHUNK_PAIRS):
                given = chunk.attributes.get
                parts.append(self._encode(chunk.edge_index, chunk.num_nodes, chunk.batch, chunk.num_graphs, given))
                if not collated:
                    sizes += torch.bincount(chunk.batch, minlength=chunk.num_graphs).tolist()
                bar.update(chunk.num_graphs)
        node = torch.cat([part.node for part in parts])
        edges = [part.edge for part in parts if part.edge is not None]
        edge = torch.cat(edges) if edges else None
        if collated:
            result: InMemoryDataset = with_node_attribute(dataset, self.attr_name, node)  # type: ignore[arg-type]
            return result if edge is None else with_edge_attribute(result, self.edge_attr_name, edge)  # type: ignore[arg-type]
        node_rows = node.split(sizes)
        edge_rows = [None] * len(graphs) if edge is None else edge.split([data.edge_index.size(1) for data in graphs])
        for data, own_nodes, own_edges in zip(graphs, node_rows, edge_rows, strict=True):
            self._write(data, Encoding(own_nodes, own_edges))
        return graphs

    def _encode(
        self,
        edge_index: Tensor,
        num_nodes: int | None,
        batch: Tensor | None,
        num_graphs: int | None,
        attribute: Callable[[str], Tensor | None],
    ) -> Encoding:
        weight = None if self.edge_weight is None else attribute(self.edge_weight)
        features = {name: attribute(name) for name in self._features}
        for name, feature in features.items():
            if feature is None:
                what = "node" if name == "x" else "edge"
                raise ValueError(f"this encoder reads {what} features from data.{name}, got data without {name}")
        encoder = self._on_device.get(edge_index.device)
        if encoder is None:
            master = self._on_device[torch.device("cpu")]
            encoder = self._on_device[edge_index.device] = copy.deepcopy(master).to(edge_index.device)
        with torch.inference_mode():
            graph = Incidence(edge_index, num_nodes, edge_weight=weight, batch=batch, num_graphs=num_graphs)
            node, edge = encoder.encode(graph, features.get("x"), features.get("edge_attr"))
        if self.edge_attr_name is None:
            edge = None  # not every encoder can leave edges out
        # Copied outside of inference mode: tensors that autograd may use.
        return Encoding(node[:, : self.out_channels].clone(), None if edge is None else edge.clone())

    def __repr__(self) -> str:
        """Changes when anything does that changes the output: PyG compares it to detect a stale cache."""
        return (
            f"{type(self).__name__}(attr_name={self.attr_name!r}, edge_weight={self.edge_weight!r}, "
            f"edge_attr_name={self.edge_attr_name!r}, encoder={self._described})"
        )


def _describe(encoder: Encoder) -> str:
    """A text that changes with the encoder's output: its arguments, or a digest of these and the weights."""
    name, arguments = type(encoder).__name__, encoder.config_dict()
    if encoder.state_dict():
        return f"{name}({module_digest(encoder)})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items() if key != 'class')})"
