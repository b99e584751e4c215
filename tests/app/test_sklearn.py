"""Molecules as rows of numbers, for scikit-learn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

pd = pytest.importorskip("pandas")
pytest.importorskip("rdkit")
pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import Ridge  # noqa: E402
from sklearn.model_selection import cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402

from tg_lpe import GramTransformer, GraphTransformer, zoo  # noqa: E402
from tg_lpe.app.prediction import Predictor  # noqa: E402
from tg_lpe.app.sklearn import MoleculeEncoder  # noqa: E402

SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "CCCC", "CCN", "CCCl"]


@pytest.mark.parametrize("name", ["transformer-zinc", "tuple-zinc12k", "transformer-linear-zinc"])
def test_the_read_out_maps_the_columns_to_the_prediction(name: str) -> None:
    predictor = zoo.load(name)
    encoder = MoleculeEncoder(predictor).fit(SMILES)
    rows = encoder.transform(SMILES)
    with torch.no_grad():
        found = predictor.task.predict(predictor.model.readout(torch.from_numpy(rows)))
    torch.testing.assert_close(found, predictor.predict(SMILES).values, rtol=1e-4, atol=1e-4)
    assert rows.shape == (6, len(encoder.get_feature_names_out()))


def test_every_form_of_a_column_is_encoded_alike() -> None:
    encoder = MoleculeEncoder().fit(SMILES)
    expected, table = encoder.transform(SMILES), pd.DataFrame({"smiles": SMILES}, index=list("abcdef"))
    forms = [np.array(SMILES), np.array(SMILES)[:, None], table["smiles"], table]
    forms.append(next(iter(encoder.predictor_.reader.read(SMILES))).graphs)
    for form in forms:
        np.testing.assert_array_equal(encoder.transform(form), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(SMILES), expected)
    assert list(encoder.set_output(transform="pandas").transform(table).index) == list("abcdef")
    with pytest.raises(ValueError, match="one column of molecules, got 2"):
        encoder.transform(pd.DataFrame({"a": SMILES, "b": SMILES}))


def test_it_works_in_pipelines() -> None:
    table = pd.DataFrame({"smiles": SMILES, "dose": range(6)})
    columns = ColumnTransformer([("m", MoleculeEncoder(), "smiles"), ("n", "passthrough", ["dose"])])
    assert columns.fit_transform(table).shape == (6, 129)
    assert columns.get_feature_names_out()[0] == "m__molecule_encoder_0"
    assert np.isfinite(cross_val_score(make_pipeline(clone(MoleculeEncoder()), Ridge()), SMILES, range(6), cv=2)).all()


def test_what_cannot_be_encoded_is_named() -> None:
    with pytest.raises(NotFittedError):
        MoleculeEncoder().transform(SMILES)
    with pytest.warns(UserWarning, match="3 of 4 rows are NaN: 'x' at place 1"):
        rows = MoleculeEncoder().fit(SMILES).transform(["CCO", "x", None, "[Au]"])
    assert np.isnan(rows).all(1).tolist() == [False, True, True, True]
    with pytest.raises(ValueError, match="a single one that reads molecules alone, got Predictor of y"):
        MoleculeEncoder(zoo.load_many(["transformer-zinc12k", "san-zinc12k"])).fit(SMILES)
    nodes = GraphTransformer(encoder=GramTransformer(out_channels=4), hidden_channels=8, readout={"level": "node"})
    with pytest.raises(ValueError, match="predicts nodes"):
        MoleculeEncoder(Predictor(nodes.eval())).fit_transform(SMILES)
