"""TensorBoard and Weights & Biases, imported if they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tg_lpe.arguments import check_choice
from tg_lpe.checkpoints.files import read_object
from tg_lpe.training.run_folder import RunFolder

LOGGERS = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}
"""Modules by name of the logger, which is that of the package as well."""

Write = Callable[[Mapping[str, Any]], None]


def import_logger(name: str) -> Any:
    """Import the module of a logger.

    Raises:
        ValueError: if the name is unknown.
        ModuleNotFoundError: if its package is not installed.
    """
    check_choice("logger", name, tuple(LOGGERS))
    try:
        return importlib.import_module(LOGGERS[name])
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"logger {name} is not installed: pip install {name}", name=name) from error


@contextmanager
def opened(name: str | None, folder: RunFolder | None) -> Iterator[Write]:
    """Yield a function that logs the numbers of a row of metrics at its ``epoch``; it does nothing without a name.

    Args:
        name: a key of :data:`LOGGERS`.
        folder: the run's, for TensorBoard's files and the name of the run. Settings of the run, but nothing of its
            data, go to Weights & Biases. ``None`` in all processes but the first.
    """
    if name is None or folder is None:
        yield lambda row: None
    elif name == "tensorboard":
        # Earlier rows of a run that goes on are written again.
        with import_logger(name).SummaryWriter(str(folder.path), purge_step=0) as writer:

            def write(row: Mapping[str, Any]) -> None:
                for key, value in _numbers(row).items():
                    writer.add_scalar(key, value, row["epoch"])

            yield write
    else:
        settings = {key: value for key, value in read_object(folder.config).items() if key != "data"}
        options = {"project": "tg_lpe", "name": folder.path.name, "dir": str(folder.path), "config": settings}
        with import_logger(name).init(**options) as run:
            yield lambda row: run.log(_numbers(row), step=row["epoch"])


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row; those of several columns of labels are ``NAME/COLUMN``."""
    columns = {
        f"{name}/{key}": one for name, each in row.items() if isinstance(each, Mapping) for key, one in each.items()
    }
    return {key: value for key, value in {**row, **columns}.items() if isinstance(value, int | float)}
