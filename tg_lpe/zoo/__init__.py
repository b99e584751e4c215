"""The checkpoints that ship with the package, one folder each: a model zoo.

``config.json`` and ``model.safetensors`` are what ``from_pretrained`` reads; ``card.json`` says how the checkpoint was
made and what it scores, and ``README.md`` says the same in words.
"""

from tg_lpe.hub.zoo import card, names, path

__all__ = ["card", "names", "path"]
