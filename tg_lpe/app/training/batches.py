"""Make batches of an in-memory dataset directly from its storage, instead of collating single graphs as PyG does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch_geometric import loader
from torch_geometric.data import Batch, Data, InMemoryDataset

from tg_lpe.data.storage import node_slices, plain_storage, rows_of


def batch_loader(
    dataset: Any, batch_size: int = 1, *, generator: torch.Generator | None = None, **options: Any
) -> DataLoader[Batch]:
    """Return a loader of the same batches as PyG's ``DataLoader``, with equal attributes in equal order.

    It never draws from the global generator, as PyG's does.

    Args:
        dataset: the graphs. Graphs of an ``InMemoryDataset``, or of a selection from one, are read from its storage all
            at once. Other datasets, such as those with a ``transform``, use PyG's loader.
        batch_size: number of graphs of a batch.
        generator: for the random draws of the loader; one with a fixed seed if absent.
        options: further arguments of ``torch.utils.data.DataLoader``.
    """
    options["generator"] = torch.Generator() if generator is None else generator
    if (storage := plain_storage(dataset)) is not None:
        return DataLoader(dataset.indices(), batch_size, collate_fn=_Collater(storage), **options)
    return loader.DataLoader(dataset, batch_size, **options)  # type: ignore[no-any-return]


class _Collater:
    """Make a batch of the graphs with given numbers, equal to that of :meth:`Batch.from_data_list`."""

    def __init__(self, dataset: InMemoryDataset) -> None:
        self.data, self.node_slices = dataset._data, node_slices(dataset)
        self.slices = {name: slices for name, slices in dataset.slices.items() if name in self.data}

    def __call__(self, numbers: Sequence[int]) -> Batch:
        batch, index = Batch(_base_cls=Data), torch.tensor(numbers)
        num_nodes, ptr, _ = rows_of(self.node_slices, index)
        zeros = torch.zeros_like(num_nodes)
        batch._slice_dict, batch._inc_dict = {}, {}
        for name, slices in self.slices.items():
            value, offset = self.data[name], None
            counts, listed, rows = rows_of(slices, index)
            if type(value) is list:
                batch[name] = [value[number] for number in numbers]
            elif self.data.__cat_dim__(name, value) == 0:
                batch[name], offset = value.index_select(0, rows), zeros
            else:  # indices of nodes
                offset = ptr[:-1]
                batch[name] = value.index_select(-1, rows) + offset.repeat_interleave(counts)
            batch._slice_dict[name], batch._inc_dict[name] = listed, offset
        if "_num_nodes" in self.data._store.__dict__:  # PyG's place for the num_nodes of each collated graph
            batch._store._num_nodes, batch.num_nodes = num_nodes.tolist(), int(ptr[-1])
        batch.batch = torch.arange(len(index)).repeat_interleave(num_nodes)
        batch.ptr, batch._num_graphs = ptr, len(index)
        return batch
