"""Predict the mean and the spread of several trained models."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from itertools import islice, tee
from pathlib import Path
from typing import Any

import torch

from tg_lpe.app.prediction.predictions import Outside, Refusal
from tg_lpe.app.prediction.predictor import BATCH_SIZE, PredictedPart, Predictor, load
from tg_lpe.app.training.outputs import Outputs
from tg_lpe.data.storage import GraphChunk


class Ensemble(Predictor):
    """Predict the mean and the spread of several models, used like a :class:`Predictor`; :func:`load_many` loads one.

    ``values`` are the means of the models' values or probabilities. ``spread`` is the standard deviation over the
    models (divisor ``num_models - 1``); it shows how far they agree, but is no error bar. A molecule that one of the
    models refuses is refused, and one that is outside for one of them is outside. Each model reads SMILES with its own
    atom types.

    Args:
        predictors: two or more predictors with the same targets, task, units and kind of input.

    Attributes:
        predictors: the predictors. ``model``, ``task`` and ``data`` are those of the first.

    Raises:
        TypeError: if an element is no :class:`Predictor`, or an ensemble.
        ValueError: if there are fewer than two predictors, or they predict or read different things.

    Example:
        >>> from tg_lpe import zoo
        >>> ensemble = zoo.load_many(["transformer-zinc12k", "san-zinc12k"])
        >>> predictions = ensemble.predict(["CC(=O)Nc1ccc(O)cc1"])
        >>> predictions.columns + predictions.spread_columns
        ('y', 'y_spread')
    """

    def __init__(self, predictors: Iterable[Predictor]) -> None:
        self.predictors = tuple(predictors)
        _check_alike(self.predictors, [f"predictors[{index}]" for index in range(len(self.predictors))])
        first = self.predictors[0]
        super().__init__(first.model, first.task, first.data)

    @property
    def spread_columns(self) -> tuple[str, ...]:
        """Name the spread of each of ``columns``: ``COLUMN_spread``."""
        suffix = "_spread"
        while any(name + suffix in self.columns for name in self.columns):
            suffix += "_spread"
        return tuple(name + suffix for name in self.columns)

    def _run_outputs(self, part: str) -> list[Outputs]:
        outputs = [predictor._run_outputs(part)[0] for predictor in self.predictors]
        for predictor, other in zip(self.predictors, outputs, strict=True):
            is_same = other.rows == outputs[0].rows and other.smiles == outputs[0].smiles
            if not is_same or not torch.allclose(other.labels, outputs[0].labels, equal_nan=True):
                runs = [each.run.path for each in (self.predictors[0], predictor) if each.run is not None]
                difference = f"{runs[0]} and {runs[1]} have different {part} rows"
                hint = "tg-lpe train --seeds 0 1 2 trains on one split"
                raise ValueError(f"coverage needs models trained on one split, but {difference}: {hint}")
        return outputs

    def __repr__(self) -> str:
        return f"Ensemble of {len(self.predictors)} models:\n" + "\n".join(map(repr, self.predictors))

    def stream(
        self,
        smiles: Iterable[str | None],
        *,
        extra: Iterable[Sequence[Any]] | None = None,
        batch_size: int = BATCH_SIZE,
        num_workers: int | None = None,
        canonical: bool | None = None,
    ) -> Generator[PredictedPart, None, None]:
        """Predict for strings one by one, as :meth:`Predictor.stream`.

        Each vocabulary of atom types has its own ``num_workers`` reading processes.
        """
        reader_of = [predictor._reader(batch_size, canonical) for predictor in self.predictors]
        readers = [reader for index, reader in enumerate(reader_of) if reader not in reader_of[:index]]
        copies = [smiles] * len(readers) if isinstance(smiles, Sequence) else tee(smiles, len(readers))
        reads = [partial(reader.read, batch_size=batch_size, num_workers=num_workers) for reader in readers]
        start, extra_rows = 0, self._extra_rows(extra)
        # Only the loop holds the generators, so that an error ends their worker processes at once.
        for batches in zip(*(read(copy) for read, copy in zip(reads, copies, strict=True)), strict=True):
            rows = list(islice(extra_rows, len(batches[0].smiles)))
            yield _combine(
                [
                    predictor._of_molecules(batches[readers.index(reader)], start, batch_size, rows)
                    for predictor, reader in zip(self.predictors, reader_of, strict=True)
                ]
            )
            start += len(batches[0].smiles)

    def _of_graphs(self, graphs: Any, batch_size: int) -> Generator[PredictedPart, None, None]:
        if len({tuple(predictor.data.get("atom_types") or ()) for predictor in self.predictors}) > 1:
            raise ValueError("the models number atom types differently, so graphs do not fit all of them: pass SMILES")
        yield from super()._of_graphs(graphs, batch_size)

    def _of_chunk(self, chunk: GraphChunk, start: int) -> PredictedPart:
        return _combine([predictor._of_chunk(chunk, start) for predictor in self.predictors])

    def save(self, folder: str | Path) -> None:
        """Raise ``TypeError``: the models are saved one by one."""
        raise TypeError("an Ensemble cannot be saved: save each predictor, and load the folders with load_many([...])")


def load_many(names_or_dirs: Sequence[str | Path], device: str | torch.device = "cpu") -> Ensemble:
    """Load an ensemble of trained models, such as the seeds of one run.

    Args:
        names_or_dirs: two or more different models, each as in :func:`load`.
        device: where to compute.

    Raises:
        TypeError: if ``names_or_dirs`` is a single name.
        ValueError: if a model is named twice, or as in :func:`load` and :class:`Ensemble`.
    """
    if isinstance(names_or_dirs, str | Path):
        raise TypeError(f"names_or_dirs must be a list of models, got {names_or_dirs!r}; load() loads one model")
    names = [str(name) for name in names_or_dirs]
    if len({Path(name).resolve() for name in names}) < len(names):
        raise ValueError(f"models must be different, got {', '.join(names)}: a repeated model would shrink the spread")
    predictors = [load(name, device) for name in names]
    _check_alike(predictors, names)
    return Ensemble(predictors)


def _check_alike(predictors: Sequence[Predictor], names: Sequence[str]) -> None:
    """Raise an error if a predictor cannot be combined with the first; ``names`` are for messages."""
    for predictor, name in zip(predictors, names, strict=True):
        if not isinstance(predictor, Predictor) or isinstance(predictor, Ensemble):
            raise TypeError(f"predictors must each be a Predictor of one model, {name} is a {type(predictor).__name__}")
    if len(predictors) < 2:
        raise ValueError(f"predictors must be two or more, got {len(predictors)}")
    first = _described(predictors[0])
    for predictor, name in zip(predictors, names, strict=True):
        for key, value in _described(predictor).items():
            if value != first[key]:
                difference = f"{key} of {name} is {value!r}, {key} of {names[0]} is {first[key]!r}"
                raise ValueError(f"these models cannot predict together: {difference}")


def _described(predictor: Predictor) -> dict[str, Any]:
    """Return the properties that the models of an ensemble must share."""
    data, task = predictor.data, predictor.task
    target, kind = data.get("target") or {}, "graphs (Data)"
    if data.get("bond_types") is not None:
        kind = "molecules with atom types" if data.get("atom_types") else "molecules with ogb's features"
    return {
        "task": None if task is None else task.name,
        "level": predictor._level,
        "target": predictor.columns,
        "classes": predictor.classes,
        "units": predictor.units or target.get("unit"),
        "computed": target.get("computed"),
        "input": kind,
        "bond_types": tuple(data.get("bond_types") or ()),
        "repair_radicals": bool(data.get("repair_radicals")),
        "canonical": data.get("canonical") is not False,
        "extra_columns": predictor.extra_columns,
    }


def _combine(parts: Sequence[PredictedPart]) -> PredictedPart:
    """Combine the predictions of several models for the same graphs."""
    values = torch.stack([part.values for part in parts]).double()
    refused: dict[int, Refusal] = {}
    reasons: dict[int, dict[str, None]] = {}
    for part in parts:
        refused = {refusal.index: refusal for refusal in part.refused} | refused
        for other in part.outside:
            reasons.setdefault(other.index, {}).update(dict.fromkeys(other.reason.split("; ")))
    names = {other.index: other.what for part in parts for other in part.outside}
    outside = [Outside(i, names[i], "; ".join(reasons[i])) for i in sorted(reasons) if i not in refused]
    return parts[0]._replace(
        values=values.mean(0).float(),
        spread=values.std(0).float(),
        refused=[refused[i] for i in sorted(refused)],
        outside=outside,
    )
