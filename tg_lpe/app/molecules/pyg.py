"""Convert PyTorch Geometric's molecule datasets to this package's splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import ZINC
from torch_geometric.datasets.qm9 import HAR2EV

from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits, spec_of
from tg_lpe.app.molecules.qm9 import QM9_UNITS, check_qm9_targets
from tg_lpe.app.molecules.report import LoadReport
from tg_lpe.app.molecules.vocabulary import BOND_TYPES, ZINC_VOCABULARY, AtomVocabulary
from tg_lpe.data import TargetSpec

_QM9_ELEMENTS = ("H", "C", "N", "O", "F")
_QM9_BONDS = 4
_QM9_COLUMNS = ("mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "u0", "u298", "h298", "g298", "cv")
"""PyG's first columns; seven more follow."""
_QM9_WIDTH = 19


def from_pyg(
    train: Iterable[Data],
    val: Iterable[Data],
    test: Iterable[Data],
    *,
    target: int | str | Sequence[str] | None = None,
) -> MoleculeSplits:
    """Convert `torch_geometric.datasets.ZINC` or `QM9`, whole or sliced, to splits.

    Atom and bond features become type indices. ZINC keeps its published numbering. QM9 has explicit hydrogens, elements
    as atom types, and `AROMATIC` as a fifth bond type. Attributes other than `x`, `edge_index`, `edge_attr` and `y` are
    dropped.

    Args:
        train: Training graphs.
        val: Validation graphs.
        test: Test graphs. Each graph has either `x: int64 [num_nodes, 1]` and `edge_attr: int64 [num_edges]` with
            values 1 to 3 (ZINC), or `x: [num_nodes, 5 or more]` whose first five columns are one-hot and
            `edge_attr: [num_edges, 4]` one-hot (QM9).
        target: The labels; required if `y` has several columns. A number selects a column, with its labels unchanged.
            One or several names select QM9's :data:`QM9_UNITS`, with energies converted from PyG's eV to the published
            Hartree.

    Returns:
        The splits.

    Example:
        >>> from torch_geometric.datasets import QM9
        >>> from tg_lpe.app.molecules import from_pyg, qm9_split
        >>> dataset = QM9("data/qm9")  # doctest: +SKIP
        >>> parts = (dataset[rows] for rows in qm9_split(len(dataset), seed=0))  # doctest: +SKIP
        >>> splits = from_pyg(*parts, target=["homo", "lumo", "gap"])  # doctest: +SKIP

    Raises:
        TypeError: If a graph lacks tensors named `x`, `edge_index`, `edge_attr` and `y`.
        ValueError: If a split is empty, features are of neither kind or of both, or `target` is missing, out of range
            or no property of QM9.
    """
    number = target if isinstance(target, int) else None
    names = (target,) if isinstance(target, str) else () if isinstance(target, int) else tuple(target or ())
    check_qm9_targets(names, "target")
    graphs = {"train": list(train), "val": list(val), "test": list(test)}
    for split, part in graphs.items():
        if not part:
            raise ValueError(f"the {split} split has no graphs")
    bond_types: tuple[str, ...] = BOND_TYPES
    one_hot = _is_one_hot(graphs["train"][0], "train[0]")
    datasets = {split: _convert(part, split, one_hot, names or number) for split, part in graphs.items()}
    if one_hot:
        vocabulary, bond_types = AtomVocabulary(_QM9_ELEMENTS), (*BOND_TYPES, "AROMATIC")
    else:
        largest = max(int(dataset._data["x"].max()) for dataset in datasets.values())
        # Other integer features have no known names.
        vocabulary = AtomVocabulary(tuple(f"type {index}" for index in range(largest + 1)))
        if isinstance(train, ZINC) and largest < len(ZINC_VOCABULARY):
            vocabulary = ZINC_VOCABULARY
    number_read = sum(map(len, graphs.values()))
    return MoleculeSplits(
        **datasets,
        spec=spec_of(datasets.values(), len(vocabulary), len(bond_types)),
        target=TargetSpec(
            names or ("y" if number is None else f"y{number}",), units=tuple(QM9_UNITS[name] for name in names)
        ),
        vocabulary=vocabulary,
        normalization=None,
        report=LoadReport(number_read, number_read),
        bond_types=bond_types,
    )


def _is_one_hot(graph: Data, name: str) -> bool:
    """Return whether the features of a graph are in QM9's form, not ZINC's; ``name`` begins errors."""
    for key in ("x", "edge_index", "edge_attr", "y"):
        if not isinstance(getattr(graph, key, None), Tensor):
            raise TypeError(f"{name} needs tensors x, edge_index, edge_attr and y; {key} is missing in {graph}")
    x, bonds = graph.x, graph.edge_attr
    is_integer = not (x.is_floating_point() or bonds.is_floating_point())
    if is_integer and x.dim() == 2 and x.size(1) == 1 and bonds.dim() == 1:
        return False
    if x.dim() == 2 and x.size(1) >= len(_QM9_ELEMENTS) and bonds.dim() == 2 and bonds.size(1) == _QM9_BONDS:
        return True
    raise ValueError(
        f"{name} has x {x.dtype} {list(x.shape)} and edge_attr {bonds.dtype} {list(bonds.shape)}; allowed are ZINC's "
        "form (integers [num_nodes, 1] and [num_edges]) and QM9's (one-hot [num_nodes, 5 or more] and [num_edges, 4])"
    )


def _convert(graphs: list[Data], split: str, one_hot: bool, target: int | tuple[str, ...] | None) -> MoleculeDataset:
    converted = []
    for number, graph in enumerate(graphs):
        name = f"{split}[{number}]"
        if _is_one_hot(graph, name) != one_hot:
            raise ValueError(f"{name} has features of another form than train[0]")
        if one_hot:
            atoms = _indices(graph.x[:, : len(_QM9_ELEMENTS)], f"{name}.x[:, :5]").view(-1, 1)
            bonds = _indices(graph.edge_attr, f"{name}.edge_attr") + 1
        else:
            atoms, bonds = graph.x.long(), graph.edge_attr.long()
        order = (graph.edge_index[0] * len(atoms) + graph.edge_index[1]).argsort()
        values = graph.y.reshape(-1)
        if isinstance(target, tuple):  # in their published units
            if len(values) != _QM9_WIDTH:
                raise ValueError(f"{name}.y has {len(values)} columns; the targets {target} need QM9's {_QM9_WIDTH}")
            values = values[[_QM9_COLUMNS.index(column) for column in target]].double()
            units = [HAR2EV if QM9_UNITS[column] == "Hartree" else 1.0 for column in target]
            label = (values / values.new_tensor(units)).float().view([1, -1] if len(target) > 1 else [1])
        elif target is None and len(values) != 1:
            raise ValueError(f"{name}.y has {len(values)} columns; choose one with target=0..{len(values) - 1}")
        elif not 0 <= (target or 0) < len(values):
            raise ValueError(f"target must be in 0..{len(values) - 1}, got {target}")
        else:
            label = values[target or 0].float().view(1)
        converted.append(Data(x=atoms, edge_index=graph.edge_index[:, order], edge_attr=bonds[order], y=label))
    return MoleculeDataset.from_data_list(converted)


def _indices(one_hot: Tensor, name: str) -> Tensor:
    """Return the column of the 1 in each row."""
    if not bool(((one_hot == 0) | (one_hot == 1)).all() and (one_hot.sum(1) == 1).all()):
        raise ValueError(f"{name} is not one-hot: each row needs a single 1")
    return one_hot.argmax(1)
