"""Several trained models that predict together: their mean and their spread."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any, TypeVar

import torch

from tg_lpe.data.storage import GraphChunk
from tg_lpe.prediction.predictions import Outside, Refusal
from tg_lpe.prediction.predictor import BATCH_SIZE, PredictedMolecules, Predictor, _Part, load
from tg_lpe.training.outputs import Outputs

Part = TypeVar("Part", _Part, PredictedMolecules)


class Ensemble(Predictor):
    """Predicts the mean of several models, and their spread; used as a :class:`Predictor`. :func:`load_many` loads one.

    ``values`` are means: of values, or of probabilities, whose largest names the class. ``spread`` is the standard
    deviation over the models (over ``num_models - 1``). It says how far they agree, and is no error bar. What one of
    them refuses is refused; what is outside for one of them is outside. SMILES are read for each model with its own
    atom types.

    Args:
        predictors: two or more, for the same targets, task and units, which read molecules in the same way.

    Attributes:
        predictors: the models one by one; ``model``, ``task`` and ``data`` are those of the first.

    Raises:
        TypeError: if one of them is no predictor of one model.
        ValueError: if there are fewer than two, or they predict or read something different.

    Example:
        >>> from tg_lpe import zoo
        >>> ensemble = zoo.load_many(["transformer-zinc12k", "san-zinc12k"])
        >>> predictions = ensemble.predict(["CC(=O)Nc1ccc(O)cc1"])
        >>> predictions.columns + predictions.spread_columns
        ('y', 'y_spread')
    """

    def __init__(self, predictors: Iterable[Predictor]) -> None:
        self.predictors = tuple(predictors)
        _check_alike(self.predictors, [f"predictors[{place}]" for place in range(len(self.predictors))])
        first = self.predictors[0]
        super().__init__(first.model, first.task, first.data)

    @property
    def spread_columns(self) -> tuple[str, ...]:
        """Names of the spread of each of ``columns``: ``COLUMN_spread``."""
        end = "_spread"
        while any(name + end in self.columns for name in self.columns):
            end += "_spread"
        return tuple(name + end for name in self.columns)

    def _kept(self, part: str) -> list[Outputs]:
        kept = [predictor._kept(part)[0] for predictor in self.predictors]
        for predictor, other in zip(self.predictors, kept, strict=True):
            same = other.rows == kept[0].rows and other.smiles == kept[0].smiles
            if not same or not torch.allclose(other.labels, kept[0].labels, equal_nan=True):
                runs = [one.run.path for one in (self.predictors[0], predictor) if one.run is not None]
                raise ValueError(
                    f"coverage needs models of one split, and {runs[0]} and {runs[1]} have other {part} rows: "
                    "tg-lpe train --seeds 0 1 2 trains on one split"
                )
        return kept

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
    ) -> Generator[PredictedMolecules, None, None]:
        """Predict for strings that come one by one, as :meth:`Predictor.stream`.

        Models with the same atom types share what is read; ``num_workers`` processes read for each vocabulary.
        """
        wanted = [predictor._reader(batch_size, canonical) for predictor in self.predictors]
        readers = [reader for place, reader in enumerate(wanted) if reader not in wanted[:place]]
        copies = [smiles] * len(readers) if isinstance(smiles, Sequence) else tee(smiles, len(readers))
        read = [partial(reader.read, batch_size=batch_size, num_workers=num_workers) for reader in readers]
        start, beside = 0, self._beside(extra)
        # The loop alone holds the generators, so that an error ends their worker processes at once.
        for batches in zip(*(of(copy) for of, copy in zip(read, copies, strict=True)), strict=True):
            rows = beside(len(batches[0].smiles))
            yield _together(
                [
                    predictor._of_molecules(batches[readers.index(reader)], start, batch_size, rows)
                    for predictor, reader in zip(self.predictors, wanted, strict=True)
                ]
            )
            start += len(batches[0].smiles)

    def _of_graphs(self, graphs: Any, batch_size: int) -> Generator[_Part, None, None]:
        if len({tuple(predictor.data.get("atom_types") or ()) for predictor in self.predictors}) > 1:
            raise ValueError("graphs have atom types by number, which differ between these models: give SMILES")
        yield from super()._of_graphs(graphs, batch_size)

    def _of_chunk(self, chunk: GraphChunk, start: int) -> _Part:
        return _together([predictor._of_chunk(chunk, start) for predictor in self.predictors])

    def save(self, folder: str | Path) -> None:
        """Raise a ``TypeError``: models are saved one by one."""
        raise TypeError("an Ensemble is not saved: save each of its predictors, and load_many([...]) their folders")


def load_many(names_or_dirs: Sequence[str | Path], device: str | torch.device = "cpu") -> Ensemble:
    """Load several trained models that predict together, such as the seeds of one run.

    Args:
        names_or_dirs: two or more different models, each as in :func:`load`.
        device: where to compute.

    Raises:
        TypeError: if ``names_or_dirs`` is one name.
        ValueError: as :func:`load` and :class:`Ensemble`, or if one model is named twice.
    """
    if isinstance(names_or_dirs, str | Path):
        raise TypeError(f"names_or_dirs must be a list of models, got {names_or_dirs!r}; load takes one")
    names = [str(name) for name in names_or_dirs]
    if len({Path(name).resolve() for name in names}) < len(names):
        raise ValueError(f"models must be different, got {', '.join(names)}: one that counts twice shrinks the spread")
    predictors = [load(name, device) for name in names]
    _check_alike(predictors, names)
    return Ensemble(predictors)


def _check_alike(predictors: Sequence[Predictor], names: Sequence[str]) -> None:
    """Raise an error that quotes how one of several predictors differs from the first, under their names."""
    for predictor, name in zip(predictors, names, strict=True):
        if not isinstance(predictor, Predictor) or isinstance(predictor, Ensemble):
            raise TypeError(f"predictors must each be a Predictor of one model, {name} is a {type(predictor).__name__}")
    if len(predictors) < 2:
        raise ValueError(f"predictors must be two or more, for there to be a spread; got {len(predictors)}")
    first = _described(predictors[0])
    for predictor, name in zip(predictors, names, strict=True):
        for what, value in _described(predictor).items():
            if value != first[what]:
                raise ValueError(
                    f"these models cannot predict together: {what} of {name} is {value!r}, "
                    f"that of {names[0]} is {first[what]!r}"
                )


def _described(predictor: Predictor) -> dict[str, Any]:
    """Return what models that predict together have in common."""
    data, task = predictor.data, predictor.task
    target = data.get("target") or {}
    return {
        "task": None if task is None else task.name,
        "level": predictor._level,
        "target": predictor.columns,
        "classes": predictor.classes,
        "units": predictor.units or target.get("unit"),
        "computed": target.get("computed"),
        "input": _input(data),
        "bond_types": tuple(data.get("bond_types") or ()),
        "repair_radicals": bool(data.get("repair_radicals")),
        "canonical": data.get("canonical") is not False,
        "extra_columns": predictor.extra_columns,
    }


def _input(data: Mapping[str, Any]) -> str:
    if data.get("bond_types") is None:
        return "graphs (Data)"
    return "molecules with atom types" if data.get("atom_types") else "molecules with ogb's features"


def _together(parts: Sequence[Part]) -> Part:
    """Put the predictions of several models for the same graphs together."""
    values = torch.stack([part.values for part in parts]).double()
    refused: dict[int, Refusal] = {}
    reasons: dict[int, dict[str, None]] = {}
    for part in parts:
        refused = {refusal.index: refusal for refusal in part.refused} | refused
        for other in part.outside:
            reasons.setdefault(other.index, {}).update(dict.fromkeys(other.reason.split("; ")))
    what = {other.index: other.what for part in parts for other in part.outside}
    outside = [Outside(i, what[i], "; ".join(reasons[i])) for i in sorted(reasons) if i not in refused]
    return parts[0]._replace(
        values=values.mean(0).float(),
        spread=values.std(0).float(),
        refused=[refused[i] for i in sorted(refused)],
        outside=outside,
    )
