"""Configurations of earlier releases, read as today's.

Layout 1 (release 0.1) did not name the class and had other names for some arguments; layout 2 says ``"class"``.
"""

from __future__ import annotations

from typing import Any

_GRAM_PROBES = ("auto", "identity", "rademacher")
_RENAMED = {
    "GramTransformer": {"edge_channels": "edge_out_channels", "edge_in_channels": "edge_dim"},
    "GraphTransformer": {"channels": "hidden_channels", "edge_channels": "edge_dim"},
    "LinearTransformer": {},
}


def upgrade(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration in today's layout.

    Args:
        config: the content of a ``config.json``, or of its entry ``encoder``; it is not changed.

    Returns:
        The configuration with ``"class"``, if it has none and its class can be told from its arguments; otherwise as it
        is.
    """
    if "class" in config:
        return config
    if "probes" in config and "num_node_types" in config:
        name = "GramTransformer" if config["probes"] in _GRAM_PROBES else "LinearTransformer"
    elif "heads" in config and "pooling" in config:
        name = "GraphTransformer"
    else:
        return config
    renamed = {_RENAMED[name].get(key, key): value for key, value in config.items()}
    if isinstance(renamed.get("encoder"), dict):
        renamed["encoder"] = upgrade(renamed["encoder"])
    return {"class": name, **renamed}
