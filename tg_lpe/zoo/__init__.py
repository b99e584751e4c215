"""The checkpoints that ship with the package, one folder each: a model zoo.

``config.json`` and ``model.safetensors`` are what ``from_pretrained`` reads; ``card.json`` says how the checkpoint was
made and what it scores, and ``README.md`` says the same in words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tg_lpe.checkpoints.zoo import card, names, path

if TYPE_CHECKING:
    import torch

    from tg_lpe.prediction import Predictor

__all__ = ["card", "load", "names", "path"]


def load(name_or_dir: str | Path, device: str | torch.device = "cpu") -> Predictor:
    """Load a trained model, ready to predict from SMILES or graphs, see :func:`tg_lpe.prediction.load`."""
    from tg_lpe.prediction import load

    return load(name_or_dir, device)
