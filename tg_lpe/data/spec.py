"""Describe a dataset: the sizes of its features, which constructors of models need, and its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.data.storage import node_slices, whole

Categories = int | tuple[int, ...]
"""Number of categories of one integer column, or of each of several columns."""

Level = Literal["graph", "node"]
LEVELS: tuple[str, ...] = get_args(Level)


@dataclass(frozen=True)
class DataSpec:
    """Hold the sizes of a dataset's features; a size is ``None`` without such features.

    Attributes:
        num_node_types: number of categories of integer node features, for each column if there are several.
        in_channels: width of real node features.
        num_edge_types: number of categories of integer edge features, for each column if there are several.
        edge_dim: width of real edge features.
        max_nodes: number of nodes of the largest graph; ``None`` if not known.
        graph_dim: number of columns of the real features of whole graphs, ``graph_attr`` ``[1, graph_dim]``.
    """

    num_node_types: Categories | None = None
    in_channels: int | None = None
    num_edge_types: Categories | None = None
    edge_dim: int | None = None
    max_nodes: int | None = None
    graph_dim: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DataSpec:
        """Make the sizes from the dictionary of :meth:`to_dict`, also after it was written as JSON."""
        sizes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**sizes)

    @classmethod
    def of(cls, *datasets: Any) -> DataSpec:
        """Read the sizes of one or more datasets together, such as the three splits of one.

        Integer features (int64) are categories from 0 to the largest that occurs; floating point features are real. For
        ambiguous features this raises an error; write ``DataSpec(...)`` yourself.

        Args:
            datasets: PyG datasets or sequences of ``Data``.

        Raises:
            TypeError: if a dataset holds anything but ``Data``.
            ValueError: if features have another dtype, are negative categories, are several integer columns of 0 and 1
                only (types, or one-hot features), or differ in kind or width between datasets.
        """
        if not datasets:
            raise ValueError("DataSpec.of needs at least one dataset, got none")
        parts = [whole(dataset) for dataset in datasets]
        stored: list[Data] = [part._data for part in parts]
        types, channels = _sizes("x", [data.get("x") for data in stored])
        edge_types, edge_dim = _sizes("edge_attr", [data.get("edge_attr") for data in stored])
        graph_types, graph_dim = _sizes("graph_attr", [data.get("graph_attr") for data in stored])
        if graph_types is not None:
            raise ValueError("graph_attr must be floating point, [1, num_features] for each graph, got int64")
        largest = max((int(node_slices(part).diff().max()) for part in parts if len(part)), default=0)
        return cls(types, channels, edge_types, edge_dim, largest, graph_dim)


@dataclass(frozen=True)
class TargetSpec:
    """Describe the labels ``y`` of a dataset.

    Attributes:
        columns: names of the columns of ``y``; empty if there is nothing to predict.
        level: whether a row of ``y`` belongs to a graph or to a node.
        computed: name of the function that computed the labels, ``None`` if they come with the data.
        classes: for each column the names of its classes, whose indices are the labels; empty for a column of numbers.
            Empty if no column has names.
        units: unit of each column, such as ``"Hartree"``; empty if not known.
    """

    columns: tuple[str, ...] = ("y",)
    level: Level = "graph"
    computed: str | None = None
    classes: tuple[tuple[str, ...], ...] = ()
    units: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary."""
        named: dict[str, Any] = {"classes": [list(names) for names in self.classes]} if self.classes else {}
        if self.units:
            named["units"] = list(self.units)
        return {"columns": list(self.columns), "level": self.level, "computed": self.computed, **named}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TargetSpec:
        """Make the description from the dictionary of :meth:`to_dict`."""
        classes = tuple(tuple(names) for names in values.get("classes", ()))
        units = tuple(values.get("units", ()))
        return cls(**{**values, "columns": tuple(values["columns"]), "classes": classes, "units": units})


def _sizes(name: str, features: Sequence[Any]) -> tuple[Categories | None, int | None]:
    """Return the categories and channels of a feature from its values in each dataset."""
    forms = {_form(name, feature) for feature in features}
    if len(forms) > 1:
        raise ValueError(f"{name} has different forms in different datasets: {', '.join(sorted(map(str, forms)))}")
    kind, width = forms.pop()
    if kind == "none":
        return None, None
    if kind == "real":
        return None, width
    columns = [feature.reshape(feature.size(0), -1) for feature in features if feature.numel()]
    if not columns:
        return (1 if width == 1 else (1,) * width), None
    low = torch.stack([column.min(0).values for column in columns]).min(0).values
    high = torch.stack([column.max(0).values for column in columns]).max(0).values
    if bool((low < 0).any()):
        raise ValueError(f"integer {name} must be categories from 0 on, got {int(low.min())}")
    counts = tuple(int(value) + 1 for value in high)
    if width > 1 and max(counts) <= 2:
        advice = f"make it floating point if it is a one-hot code; pass spec=DataSpec(...) if it is {width} types"
        raise ValueError(f"{name} has {width} integer columns of only 0 and 1: {advice}")
    return (counts[0] if width == 1 else counts), None


def _form(name: str, feature: Any) -> tuple[str, int]:
    """Return the kind of a feature, ``none``, ``real`` or ``types``, and its number of columns."""
    if feature is None:
        return "none", 0
    one = feature[0] if isinstance(feature, list) and feature else feature  # PyG lists what it cannot stack
    if isinstance(one, Tensor) and one.layout != torch.strided:
        raise ValueError(f"{name} must be dense, got the layout {one.layout}; write {name}.to_dense()")
    if not isinstance(feature, Tensor):
        raise ValueError(f"{name} must be a tensor, got {one!r:.80}")
    if feature.is_floating_point():
        if feature.dim() != 2:
            call = "view(1, -1)" if name == "graph_attr" else "unsqueeze(1)" if feature.dim() < 2 else "flatten(1)"
            raise ValueError(f"real {name} must be [rows, num_features], got {[*feature.shape]}; write {name}.{call}")
        return "real", feature.size(1)
    if feature.dtype != torch.int64:
        raise ValueError(
            f"{name} must be int64 (categories) or floating point (real features), got {feature.dtype}; write "
            f"{name}.long() or {name}.float()"
        )
    if feature.dim() not in (1, 2):
        raise ValueError(f"{name} must have shape [num_rows] or [num_rows, num_columns], got {tuple(feature.shape)}")
    return "types", feature.size(1) if feature.dim() == 2 else 1
