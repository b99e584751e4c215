"""Learned positional encodings for PyTorch Geometric."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tg_lpe import encoders, models, zoo
    from tg_lpe.app import plot
    from tg_lpe.app.comparison import compare
    from tg_lpe.encoders import Encoder, Encoding, GramTransformer, LinearTransformer
    from tg_lpe.graph.graph import Graph
    from tg_lpe.models.graph_transformer import GraphTransformer
    from tg_lpe.transforms import AddPositionalEncoding, LinearTransformerPE

__all__ = [
    "AddPositionalEncoding",
    "Encoder",
    "Encoding",
    "GramTransformer",
    "Graph",
    "GraphTransformer",
    "LinearTransformer",
    "LinearTransformerPE",
    "compare",
    "encoders",
    "models",
    "plot",
    "zoo",
]

__version__ = "1.0.0"

_HOME = {
    **dict.fromkeys(("Encoder", "Encoding", "GramTransformer", "LinearTransformer"), "encoders"),
    **dict.fromkeys(("AddPositionalEncoding", "LinearTransformerPE"), "transforms"),
    "GraphTransformer": "models.graph_transformer",
    "Graph": "graph.graph",
    "compare": "app.comparison",
    "plot": "app.plot",
}
"""The modules that define the names of :mod:`tg_lpe`; the other names are modules themselves."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that ``tg-lpe --help`` does not import torch."""
    if name not in __all__:
        rooms = () if name.startswith("_") else ("encoders", "models", "transforms")
        places = {own: room for room in rooms for own in importlib.import_module(f"{__name__}.{room}").__all__}
        hint = "".join(f"; there is {__name__}.{places[near]}.{near}" for near in get_close_matches(name, places, n=1))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    module = importlib.import_module(f"{__name__}.{_HOME.get(name, name)}")
    globals()[name] = value = getattr(module, name, module)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
