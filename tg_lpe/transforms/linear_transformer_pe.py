"""The linear transformer's encoding as a PyTorch Geometric transform."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform
from tqdm import tqdm

from tg_lpe.data.storage import is_collated, iterate_chunks, with_edge_attribute, with_node_attribute
from tg_lpe.encoders.gram_transformer import Encoding, GramTransformer
from tg_lpe.encoders.linear_transformer import LinearTransformer
from tg_lpe.encoders.registry import load_encoder
from tg_lpe.graph.incidence import Incidence
from tg_lpe.hub.checkpoints import module_digest
from tg_lpe.transforms.attributes import write_node_encoding

DEFAULT_ENCODER = "gram-k8"
"""The shipped encoder that is used where none is named."""

CHUNK = 4096
"""Graphs that are encoded at once, at most."""

CHUNK_PAIRS = 2**22
"""Pairs of nodes, graph by graph, that are encoded at once, at most: a matrix of each filter has as many entries."""


@functional_transform("linear_transformer_pe")
class LinearTransformerPE(BaseTransform):
    r"""Adds the positional encoding of a linear transformer to a graph (functional name: ``linear_transformer_pe``).

    Without further arguments it uses a pretrained encoder that ships with the package, :data:`DEFAULT_ENCODER`, whose
    card in ``tg_lpe/zoo`` says what it computes; ``k`` says how many of its columns are written. It is defined on every
    graph: a single node, no edges, fewer nodes than ``k``, several components. The same graph gets the same encoding
    alone and in any batch. `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_.

    A :class:`~tg_lpe.GramTransformer` encodes edges too. On request they are written beside the nodes:
    ``edge_attr_name="linear_transformer_edge_pe"`` gives ``data.linear_transformer_edge_pe``, one row for each column
    of ``edge_index``, the same in both directions of an edge and zero at self-loops.

    Reads ``edge_index``, ``num_nodes``, ``edge_weight`` (conductances) where there is one, and ``x`` or ``edge_attr``
    if the encoder depends on features of nodes or edges. Works on ``Data`` and ``Batch``, on their device, without
    gradient.

    Args:
        k: number of columns to write for each node; all of the encoder's if absent.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` appends the columns to ``x``.
        encoder: the encoder to use in place of the shipped one. A frozen copy is taken: training it further later, or
            moving it, changes nothing here.
        edge_weight: name of the attribute that holds conductances, ``None`` to ignore weights.
        edge_attr_name: attribute to write for edges, ``[num_edges, edge_channels]``; ``None`` for no edge encoding,
            which is then not computed either.

    Raises:
        ValueError: if the encoder has fewer than ``k`` channels, or none for edges where they are to be encoded.
        TypeError: if ``encoder`` is neither a :class:`~tg_lpe.LinearTransformer` nor a
            :class:`~tg_lpe.GramTransformer`.
    """

    def __init__(
        self,
        k: int | None = None,
        attr_name: str | None = "linear_transformer_pe",
        encoder: LinearTransformer | GramTransformer | None = None,
        edge_weight: str | None = "edge_weight",
        edge_attr_name: str | None = None,
    ) -> None:
        if encoder is not None and not isinstance(encoder, LinearTransformer | GramTransformer):
            raise TypeError(
                f"encoder must be a LinearTransformer or a GramTransformer, got {type(encoder).__name__}; "
                "LinearTransformerPE.from_pretrained takes a name or a folder"
            )
        encoder = load_encoder(DEFAULT_ENCODER) if encoder is None else copy.deepcopy(encoder)
        self.k = encoder.out_channels if k is None else k
        if not 1 <= self.k <= encoder.out_channels:
            raise ValueError(
                f"k must lie in 1..{encoder.out_channels}, the channels of the encoder, got {k}; "
                "pass encoder=..., one with larger out_channels, for more"
            )
        if edge_attr_name is not None:
            _check_edges(encoder, edge_attr_name, attr_name)
        elif isinstance(encoder, GramTransformer):
            # This copy becomes what edge_channels=0 makes: on a single molecule, a tenth of the time is saved.
            del encoder.edge_readout
            encoder.edge_channels, encoder.edge_readout = 0, None
        self.attr_name = attr_name
        self.edge_weight = edge_weight
        self.edge_attr_name = edge_attr_name
        self._reads = ("x",) * encoder.reads_nodes
        if isinstance(encoder, GramTransformer):
            self._reads += ("edge_attr",) * encoder.reads_edges
        self._on_device = {torch.device("cpu"): _frozen(encoder.cpu())}
        self._digest = module_digest(encoder)

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path, k: int | None = None, **kwargs: Any) -> LinearTransformerPE:
        """The transform of a shipped, saved or published encoder, of either class.

        Args:
            name_or_dir: as :meth:`LinearTransformer.from_pretrained <tg_lpe.LinearTransformer.from_pretrained>`.
            k: number of columns to write.
            kwargs: as the constructor.
        """
        return cls(k, encoder=load_encoder(name_or_dir), **kwargs)

    def forward(self, data: Data) -> Data:
        """Write the encoding into ``data``; calling the transform does so on a copy."""
        if not isinstance(data, Data):
            raise TypeError(f"LinearTransformerPE takes Data or Batch of one node type, got {type(data).__name__}")
        if data.edge_index is None:
            raise ValueError(
                f"LinearTransformerPE needs edge_index, got data with {data.keys()}; for a graph without edges it is "
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
        carried = self._reads + (() if self.edge_weight is None else (self.edge_weight,))
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
        features = {name: attribute(name) for name in self._reads}
        for name, feature in features.items():
            if feature is None:
                what = "node" if name == "x" else "edge"
                raise ValueError(f"this encoder reads {what} features from data.{name}, got data without {name}")
        encoder = self._on_device.get(edge_index.device)
        if encoder is None:
            master = self._on_device[torch.device("cpu")]
            encoder = self._on_device[edge_index.device] = copy.deepcopy(master).to(edge_index.device)
        edge = None
        with torch.inference_mode():
            graph = Incidence(edge_index, num_nodes, edge_weight=weight, batch=batch, num_graphs=num_graphs)
            if isinstance(encoder, GramTransformer):
                node, edge = encoder.encode(graph, features.get("x"), features.get("edge_attr"))
            else:
                node = encoder.encode(graph, features.get("x"))
        # Copied outside of inference mode: tensors that autograd may use.
        return Encoding(node[:, : self.k].clone(), None if edge is None else edge.clone())

    def __repr__(self) -> str:
        """Changes when anything does that changes the output: PyG compares it to detect a stale cache."""
        return (
            f"{type(self).__name__}(k={self.k}, attr_name={self.attr_name!r}, edge_weight={self.edge_weight!r}, "
            f"edge_attr_name={self.edge_attr_name!r}, encoder={self._digest})"
        )


def _check_edges(encoder: LinearTransformer | GramTransformer, edge_attr_name: str, attr_name: str | None) -> None:
    """Refuse an encoding of edges that the encoder does not have, or that would take the place of the nodes'."""
    if not isinstance(encoder, GramTransformer) or not encoder.edge_channels:
        got = type(encoder).__name__ + " of edge_channels=0" * isinstance(encoder, GramTransformer)
        raise ValueError(
            f"edge_attr_name={edge_attr_name!r} needs an encoder with edge channels, such as a GramTransformer has "
            f"unless edge_channels=0, got a {got}"
        )
    if edge_attr_name == attr_name:
        raise ValueError(f"attr_name and edge_attr_name must differ, got {attr_name!r} for both")


def _frozen(encoder: LinearTransformer | GramTransformer) -> LinearTransformer | GramTransformer:
    """The encoder itself, for good in eval mode and without gradients."""
    return encoder.freeze() if isinstance(encoder, LinearTransformer) else encoder.eval().requires_grad_(False)
