"""Encode molecules as rows of numbers, for scikit-learn and other tools that read tables."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from tg_lpe.app.prediction import Predictor, load

__all__ = ["MoleculeEncoder"]


class MoleculeEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encode molecules by what the read-out of a trained model reads, as a fingerprint that was learned.

    It is not trained further. It works in scikit-learn's pipelines and column transformers, cloned and pickled.

    Args:
        model: the name of a model in the zoo, a run folder or checkpoint, or a
            :class:`~tg_lpe.app.prediction.Predictor`. It predicts properties of whole molecules.

    Attributes:
        predictor_: after :meth:`fit`, the model without its read-out.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> from sklearn.pipeline import make_pipeline
        >>> from tg_lpe.app.sklearn import MoleculeEncoder
        >>> model = make_pipeline(MoleculeEncoder(), Ridge()).fit(["CCO", "c1ccccc1", "CC(=O)O"], [-0.3, 2.1, -0.2])
        >>> model.predict(["CCCO"]).shape
        (1,)
    """

    def __init__(self, model: str | Path | Predictor = "transformer-zinc") -> None:
        self.model = model

    def fit(self, X: Any, y: Any = None) -> MoleculeEncoder:
        """Load the model; the molecules and labels are not read.

        Raises:
            FileNotFoundError, ValueError: if the model is missing, or reads further columns, or is several models.
        """
        given = self.model if isinstance(self.model, Predictor) else load(self.model)
        if given.others or given.extra_columns:
            raise ValueError(f"the model must be a single one that reads molecules alone, got {given}")
        model = copy.deepcopy(given.model)
        data = {name: value for name, value in given.data.items() if name != "ranges"}  # no warnings of other molecules
        self.predictor_ = Predictor(model, data=data)
        width = next(model.get_submodule("readout").parameters()).size(1)  # of its first linear map
        self.predictor_.columns = tuple(f"molecule_encoder_{number}" for number in range(width))
        model.readout = nn.Identity()
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Encode molecules, ``[num_molecules, num_columns]``; rows of molecules that cannot be read are NaN.

        Args:
            X: SMILES or RDKit molecules: a list, an array, a ``pandas.Series``, or a table with this column alone; or
                a list of ``Data`` with the features of the training data.

        Raises:
            ValueError: if a table has several columns, or the model predicts nodes or edges.

        Warns:
            UserWarning: once, if molecules cannot be read.
        """
        check_is_fitted(self)
        if hasattr(X, "shape") and len(X.shape) == 2:
            if X.shape[1] != 1:
                raise ValueError(f"X must be one column of molecules, got {X.shape[1]} columns")
            X = X.iloc[:, 0] if hasattr(X, "iloc") else X[:, 0]
        found = self.predictor_.predict(X, on_error="nan")
        if found.refused:
            warnings.warn(f"{len(found.refused):,} of {len(X):,} rows are NaN: {found.refused[0]}", stacklevel=2)
        return found.values.numpy()

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns."""
        return np.array(self.predictor_.columns, dtype=object)
