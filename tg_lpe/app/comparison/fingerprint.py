"""Score boosted trees on molecular fragments, a control that reads no graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from tqdm import tqdm

from tg_lpe.app.molecules import MoleculeSplits
from tg_lpe.app.molecules._molecule import parse
from tg_lpe.app.training.tasks import Multiclass, Multilabel, Regression, Task
from tg_lpe.data import GraphSplits


def fingerprint_scores(splits: GraphSplits, task: Task, progress: bool = True) -> dict[str, Any]:
    """Train scikit-learn's histogram gradient boosting for each label column, and score it on the test set.

    Its columns are counts of the Morgan fragments of radius 2, hashed to 2,048. Missing labels are left out.

    Returns:
        The figures of :meth:`Task.evaluate`.

    Raises:
        ValueError: If the data are no molecules, or the task is a class of your own.
    """
    if not isinstance(splits, MoleculeSplits) or not isinstance(task, (Regression, Multilabel, Multiclass)):
        kind = f"{task.name} of {type(splits).__name__}"
        raise ValueError(f"--fingerprint is for molecules: regression or classes; got {kind}")
    count = GetMorganGenerator(radius=2, fpSize=2048).GetCountFingerprintAsNumPy
    train, test = (np.stack([count(parse(text)) for text in splits.smiles[part]]) for part in ("train", "test"))
    labels, outputs = splits.labels("train"), []
    columns = (task.scaled(labels) if isinstance(task, Regression) else labels).T.numpy()
    for column in tqdm(columns, desc="fingerprint", unit="column", disable=None if progress else True):
        known = ~np.isnan(column)
        if isinstance(task, Regression):
            model = HistGradientBoostingRegressor(random_state=0).fit(train[known], column[known])
            outputs.append(torch.from_numpy(model.predict(test)))
            continue
        model = HistGradientBoostingClassifier(random_state=0).fit(train[known], column[known])
        shares = torch.full((len(test), max(2, task.out_channels)), 1e-9, dtype=torch.float64)
        shares[:, model.classes_.astype(int)] += torch.from_numpy(model.predict_proba(test)[:, : len(model.classes_)])
        outputs += shares.log().unbind(1) if isinstance(task, Multiclass) else [shares[:, 1].log() - shares[:, 0].log()]
    return task.evaluate(torch.stack(outputs, 1), splits.labels("test"))
