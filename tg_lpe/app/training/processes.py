"""Train in several processes started by ``torchrun``: they share every batch and have the same weights."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch_geometric.data import Batch, InMemoryDataset

from tg_lpe.app.training.batches import batch_loader
from tg_lpe.nn.norms import RowBatchNorm
from tg_lpe.nn.parallel import divided, num_processes, process_number

T = TypeVar("T")


def join(device: str | torch.device) -> torch.device:
    """Join the process group if ``torchrun`` started several processes and they have no group yet.

    Args:
        device: the device that the user named.

    Returns:
        The device of this process. With several processes, ``"cuda"`` is the GPU numbered by the local rank.

    Raises:
        ValueError: if there are several processes and ``device`` names one GPU for all of them, or there are fewer
            GPUs than processes.
    """
    device = torch.device(device)
    launched = dist.is_available() and dist.is_torchelastic_launched() and os.environ["WORLD_SIZE"] != "1"
    if not launched or dist.is_initialized():
        return device
    if device.type == "cuda":
        if device.index is not None:
            raise ValueError(f"each process uses its own GPU: device must be 'cuda', got {str(device)!r}")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if device.index >= torch.cuda.device_count():
            counts = f"this machine has {torch.cuda.device_count()}, this is process {device.index}, counted from 0"
            raise ValueError(f"each process needs its own GPU: {counts}; start fewer with --nproc-per-node")
        torch.cuda.set_device(device)
    # Some builds of torch lack these.
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, number, count = next(rendezvous("env://"))
    # torchrun keeps its store when it restarts processes; a prefix hides the addresses of the previous ones.
    store = PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=count)
    atexit.register(dist.destroy_process_group)
    return device


def check(model: nn.Module, batch_size: int, num_graphs: int) -> None:
    """Raise ``ValueError`` if a batch has too few graphs for all processes, or a norm would not see the whole batch."""
    processes = num_processes()
    if processes == 1:
        return
    for subject, count in (("batch_size is", batch_size), ("the training set has", num_graphs)):
        if count < processes:
            needed = f"each of the {processes} processes needs a graph of each batch, but {subject} {count}"
            raise ValueError(f"{needed}; batch_size counts all processes together: raise it, or start fewer")
    for name, module in model.named_modules():
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if norm and not isinstance(module, RowBatchNorm | nn.SyncBatchNorm):
            fault = f"{name}, a {type(module).__name__}, would take its statistics from one process's part of a batch"
            raise ValueError(f"{fault}: use NORMS['batch'](channels) of tg_lpe.nn.norms, or nn.SyncBatchNorm")


def from_first(make: Callable[[], T]) -> T:
    """Call on rank 0 and return the result on all ranks; a ``ValueError`` or ``OSError`` is raised on all ranks."""
    if num_processes() == 1:
        return make()
    answer: list[Any] = [None, None]
    if process_number() == 0:
        try:
            answer[0] = make()
        except (ValueError, OSError) as error:
            answer[1] = error
    dist.broadcast_object_list(answer, 0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]  # type: ignore[no-any-return]


def copy_from_first(model: nn.Module) -> None:
    """Copy the parameters and buffers of the first process to all others."""
    if num_processes() > 1:
        for value in model.state_dict().values():
            dist.broadcast(value, 0)


def average(value: Tensor) -> Tensor:
    """Return the mean of a tensor over the processes."""
    if num_processes() > 1:
        value = value.clone()
        dist.all_reduce(value)
        value /= num_processes()
    return value


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the processes; it stays ``None`` if no process has one."""
    if num_processes() == 1:
        return
    chosen = [p for p in parameters if p.requires_grad]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in chosen]
    has_grad = grads[0].new_tensor([p.grad is not None for p in chosen])
    flat = average(torch.cat([has_grad, *(grad.flatten() for grad in grads)]))
    has_grad, *means = flat.split([len(chosen), *(p.numel() for p in chosen)])
    for index, (p, grad) in enumerate(zip(chosen, means, strict=True)):
        if p.grad is not None or has_grad[index] > 0:  # reads the device only if this process has no gradient
            p.grad = grad.view_as(p).to(p.dtype)


class Parts:
    """Iterate once over this process's parts of the batches of a dataset; all processes have the same order of graphs.

    Iterating yields each part with a context to use it in, see :func:`~tg_lpe.nn.parallel.divided`. A batch with fewer
    graphs than processes is not divided: each process gets all of it.

    Args:
        dataset: the graphs.
        batch_size: graphs of a batch over all processes; the last batch may have fewer.
        generator: draws the order, equally seeded in all processes; the order of the dataset if absent.

    Attributes:
        sizes: graphs of each batch over all processes.
    """

    def __init__(self, dataset: InMemoryDataset, batch_size: int, generator: torch.Generator | None = None) -> None:
        order = SequentialSampler(dataset) if generator is None else RandomSampler(dataset, generator=generator)
        rows = map(_own_rows, BatchSampler(order, batch_size, drop_last=False))
        self._loader = batch_loader(dataset, batch_sampler=rows, generator=generator)
        self.sizes = [min(batch_size, len(dataset) - start) for start in range(0, len(dataset), batch_size)]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[tuple[Batch, AbstractContextManager[None]]]:
        for batch, size in zip(self._loader, self.sizes, strict=True):
            yield batch, divided(size >= num_processes())


def _own_rows(indices: list[int]) -> list[int]:
    """Return this process's share of a batch; a batch of fewer graphs than processes stays whole."""
    size, processes = len(indices), num_processes()
    start, stop = (size * number // processes for number in (process_number(), process_number() + 1))
    return indices[start:stop] if size >= processes else indices
