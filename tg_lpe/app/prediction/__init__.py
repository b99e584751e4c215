"""Predict with trained models for molecules, graphs and files."""

from tg_lpe.app.prediction.ensemble import Ensemble, load_many
from tg_lpe.app.prediction.file import FilePredictions, predict_file
from tg_lpe.app.prediction.predictions import Outside, Predictions, Refusal
from tg_lpe.app.prediction.predictor import Predictor, load

__all__ = [
    "Ensemble",
    "FilePredictions",
    "Outside",
    "Predictions",
    "Predictor",
    "Refusal",
    "load",
    "load_many",
    "predict_file",
]
