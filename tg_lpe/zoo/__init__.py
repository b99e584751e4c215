"""Load the checkpoints that ship with the package, one folder each.

``from_pretrained`` reads ``config.json`` and ``model.safetensors``. ``card.json`` and ``README.md`` say how the
checkpoint was made and how well it performs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tg_lpe.checkpoints.zoo import card, names, path

if TYPE_CHECKING:
    import torch

    from tg_lpe.app.prediction import Predictor

__all__ = ["card", "load", "load_many", "names", "path"]


def load(name_or_dir: str | Path, device: str | torch.device = "cpu") -> Predictor:
    """Load a trained model that predicts from SMILES or graphs, see :func:`tg_lpe.app.prediction.load`.

    Args:
        name_or_dir: one of :func:`names`, the folder of a training run or of a saved model, or ``OWNER/NAME`` on the
            Hugging Face Hub.
        device: where to compute.

    Raises:
        ValueError: if there is no such checkpoint, it is damaged or unfinished, or it holds no model.

    Example:
        >>> from tg_lpe import zoo
        >>> zoo.load("transformer-zinc").predict(["CC(=O)Nc1ccc(O)cc1"]).values.shape
        torch.Size([1, 1])
    """
    from tg_lpe.app.prediction import load

    return load(name_or_dir, device)


def load_many(names_or_dirs: Sequence[str | Path], device: str | torch.device = "cpu") -> Predictor:
    """Load several models that predict together, see :func:`tg_lpe.app.prediction.load_many`."""
    from tg_lpe.app.prediction import load_many

    return load_many(names_or_dirs, device)
