"""Log metrics to TensorBoard or Weights & Biases, which are imported only if named."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.arguments import check_choice
from tg_lpe.checkpoints.files import read_object

LOGGERS = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}
"""Modules by name of the logger; the name is also the package to install."""

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
    """Yield a function that logs the numbers of a metrics row at its ``epoch``.

    Weights & Biases receives the settings of the run, but no description of its data.

    Args:
        name: a key of :data:`LOGGERS`; ``None`` to log nothing.
        folder: the run folder, which holds TensorBoard's files and names the run; ``None``, as in all processes
            except the first, to log nothing.
    """
    if name is None or folder is None:
        yield lambda row: None
    elif name == "tensorboard":
        # A resumed run writes its earlier rows again.
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
    """Return the numbers of a row; figures of single label columns are named ``NAME/COLUMN``."""
    by_column = {
        f"{name}/{column}": figure
        for name, figures in row.items()
        if isinstance(figures, Mapping)
        for column, figure in figures.items()
    }
    return {key: value for key, value in {**row, **by_column}.items() if isinstance(value, int | float)}
