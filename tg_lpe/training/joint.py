"""Joint training of a graph transformer and its positional encoding for regression."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, InMemoryDataset
from torch_geometric.loader import DataLoader

from tg_lpe.datasets import relabel_nodes
from tg_lpe.datasets.molecules import MoleculeSplits
from tg_lpe.models.graph_transformer import GraphTransformer
from tg_lpe.training.config import TrainConfig
from tg_lpe.training.encodings import (
    EDGE_PE_ATTRIBUTE,
    PE_ATTRIBUTE,
    attach_encoding,
    build_encoder,
    edge_width,
    flip_signs,
)
from tg_lpe.training.loop import TrainingLoop, count_parameters, hash_seed, seeded
from tg_lpe.training.run_folder import RunFolder


class JointTraining(TrainingLoop):
    """Regression with L1 loss; the test set is read once, at the checkpoint that validation chose.

    Args:
        config: the settings.
        splits: the molecules.
        folder: where to write; ``None`` keeps nothing.
        device: where to train.
        progress: whether to show a progress bar.
    """

    metric = "val_mae"

    def __init__(
        self,
        config: TrainConfig,
        splits: MoleculeSplits,
        folder: RunFolder | None = None,
        device: str | torch.device = "cpu",
        progress: bool = True,
    ) -> None:
        model = build_model(config, splits).to(device)
        super().__init__(config, model, _optimizer(model, config), folder, progress)
        self.config = config
        self.train_set, self.val_set, self.test_set = (
            attach_encoding(config, split.whole()) for split in (splits.train, splits.val, splits.test)
        )
        self.raw_test_set = splits.test.whole()
        self.autocast_dtype = autocast_dtype(config.precision, self.device)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean absolute error of a training batch."""
        return (self._predict(batch, generator) - batch.y).abs().mean()

    def evaluate(self, dataset: InMemoryDataset) -> float:
        """Mean absolute error of the current weights, in the target's unit."""
        self.model.eval()
        total = 0.0
        with torch.no_grad():
            for batch in DataLoader(dataset, batch_size=4 * self.config.batch_size, generator=torch.Generator()):
                batch = batch.to(self.device)
                total += float((self._predict(batch) - batch.y).abs().double().sum())
        return total / max(len(dataset), 1)

    def result(self) -> dict[str, Any]:
        """Test error and sizes."""
        encoder = self.model.encoder
        return {
            "test_mae": self.evaluate(self.test_set),
            "test_mae_relabelled": self.relabelled_test_mae(),
            "encoder_parameters": count_parameters(encoder) if isinstance(encoder, nn.Module) else 0,
            "num_train": len(self.train_set),
            "num_val": len(self.val_set),
            "num_test": len(self.test_set),
            "precision": "float32" if self.autocast_dtype is None else "bfloat16",
        }

    def relabelled_test_mae(self) -> float:
        """Test error of the same weights when the nodes of each test molecule are numbered at random.

        Encodings that are computed beforehand are computed again. Equal to the plain error, but for rounding, if the
        encoding is equivariant; eigenvectors come with whatever sign and basis the new numbering gives them.
        """
        generator = torch.Generator().manual_seed(hash_seed(self.config.seed, RELABELLING))
        return self.evaluate(attach_encoding(self.config, relabel_nodes(self.raw_test_set, generator)))

    def _predict(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """Predictions ``[num_graphs]``; a generator draws signs of eigenvectors and random probes."""
        pe, edge_pe = batch.get(PE_ATTRIBUTE), batch.get(EDGE_PE_ATTRIBUTE)
        draws = generator if self.config.pe == "linear-transformer" else None
        if pe is not None and self.config.pe == "laplacian" and generator is not None:
            pe = flip_signs(pe, batch.batch, batch.num_graphs, generator)
        with torch.autocast(self.device.type, self.autocast_dtype, enabled=self.autocast_dtype is not None):
            out = self.model(
                batch.x,
                batch.edge_index,
                batch.edge_attr,
                batch.batch,
                pe,
                edge_pe,
                num_graphs=batch.num_graphs,
                generator=draws,
            )
        return out.float().squeeze(-1)


def build_model(config: TrainConfig, splits: MoleculeSplits) -> GraphTransformer:
    """The model of a run with its initial weights, which depend on the settings alone."""
    with seeded(config.seed):
        # The encoder is drawn from a seed of its own, so that every encoding starts from the same graph transformer.
        with seeded(hash_seed(config.seed, ENCODER_DRAW)):
            encoder = build_encoder(config, len(splits.vocabulary), len(splits.bond_types), max_nodes(splits))
        return GraphTransformer(
            encoder=encoder,
            pe_channels=config.width if encoder is None else None,
            edge_pe_channels=edge_width(config),
            num_node_types=len(splits.vocabulary),
            num_edge_types=len(splits.bond_types),
            pe_norm=config.pe_norm,
            pooling=config.pooling,
            attention=config.attention,
            hidden_channels=config.channels,
            heads=config.heads,
            num_layers=config.num_layers,
            readout=config.readout,
        )


ENCODER_DRAW = 1
"""Tells the draw of the encoder's weights from that of the transformer's."""

RELABELLING = 2
"""Likewise, of the test molecules' other numbering."""


def max_nodes(splits: MoleculeSplits) -> int:
    """Nodes of the largest graph of all splits."""
    return max(int(s.slices["x"].diff().max()) for s in (splits.train, splits.val, splits.test) if len(s))


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The dtype to autocast to, ``None`` for plain float32. ``auto`` asks whether bfloat16 products are native here."""
    if precision == "bfloat16":
        return torch.bfloat16
    if precision == "float32":
        return None
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else None
    # Without these instructions a bfloat16 product on CPU is emulated, a hundred times slower than float32.
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else None


def _optimizer(model: GraphTransformer, config: TrainConfig) -> torch.optim.AdamW:
    maps = [m for m in (model.pe_embedding, model.edge_pe_embedding) if m is not None]
    parts = {
        "encoder": (list(model.encoder.parameters()) if model.encoder is not None else [], config.encoder_lr, 0.0),
        "maps": ([p for m in maps for p in m.parameters()], config.pe_lr or config.lr, config.weight_decay),
    }
    special = {p for part, _, _ in parts.values() for p in part}
    rest = [p for p in model.parameters() if p not in special]
    groups: list[dict[str, Any]] = [{"params": rest, "weight_decay": config.weight_decay, "peak_lr": config.lr}]
    if config.pe_lr is None:  # one group, one clip
        groups[0]["params"] = rest + parts.pop("maps")[0]
    groups += [{"params": part, "weight_decay": decay, "peak_lr": lr} for part, lr, decay in parts.values() if part]
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)
