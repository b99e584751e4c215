"""Graph transformers as checkpoints, encoder included; other attentions and poolings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Degrees

from tg_lpe import GramTransformer, GraphTransformer, LinearTransformer
from tg_lpe.encoders import register

EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 4], [1, 0, 2, 1, 0, 2, 4, 3]])
BATCH = torch.tensor([0, 0, 0, 1, 1, 2])
INPUTS: dict[str, Any] = {
    "x": torch.tensor([0, 1, 2, 1, 0, 2]),
    "edge_index": EDGES,
    "edge_attr": torch.tensor([0, 0, 1, 1, 0, 0, 1, 1]),
    "batch": BATCH,
}


def small(encoder: Any = None, **kwargs: Any) -> GraphTransformer:
    torch.manual_seed(0)
    return GraphTransformer(3, num_edge_types=2, encoder=encoder, hidden_channels=8, heads=2, num_layers=2, **kwargs)


ENCODERS = {
    "none": lambda: None,
    "gram": lambda: GramTransformer(num_filters=2, num_layers=3, num_edge_types=2, num_node_types=3),
    "gram-nodes": lambda: GramTransformer(4, 0, num_filters=2, num_layers=3),
    "features": lambda: LinearTransformer(k=4, out_channels=3, probes="features", num_node_types=3),
}


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("attention", ["edge", "gps"])
def test_a_checkpoint_gives_the_same_model(kind: str, attention: str, tmp_path: Path) -> None:
    options = {"pe_options": {"norm": kind != "none"}, "readout": {"pooling": "both"}}
    model = small(ENCODERS[kind](), **options, attention=attention)
    model.train()(**INPUTS)  # running statistics that are not the initial ones
    model.eval().save_pretrained(tmp_path / "first")
    loaded = GraphTransformer.from_pretrained(tmp_path / "first")
    assert torch.equal(loaded(**INPUTS), model(**INPUTS))
    loaded.save_pretrained(tmp_path / "second")  # a loaded model can be saved again
    again = GraphTransformer.from_pretrained(tmp_path / "second")
    assert torch.equal(again(**INPUTS), model(**INPUTS))


def test_a_checkpoint_holds_the_encoder_of_a_user(tmp_path: Path) -> None:
    register(Degrees)
    model = small(Degrees(scale=0.5)).eval()
    model.save_pretrained(tmp_path)
    loaded = GraphTransformer.from_pretrained(tmp_path)
    assert type(loaded.encoder) is Degrees and torch.equal(loaded(**INPUTS), model(**INPUTS))
    assert not torch.equal(small(Degrees(scale=1.0)).eval()(**INPUTS), model(**INPUTS)), "the scale matters"


def test_invalid_arguments_of_an_encoder() -> None:
    with pytest.raises(ValueError, match="num_philters"):
        small({"class": "GramTransformer", "probes": "identity", "num_philters": 3})


@pytest.mark.parametrize("attention", ["edge", "gps"])
@pytest.mark.parametrize("num_nodes", [0, 1])
def test_tiny_batches_train(attention: str, num_nodes: int) -> None:
    model = small(attention=attention).train()
    x, none = torch.zeros(num_nodes, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64)
    out = model(x, none, none[0], num_graphs=1)
    assert out.shape == (1, 1) and bool(out.isfinite().all())
