"""Trained models in use: predictions for molecules, graphs and files."""

from tg_lpe.prediction.file import FilePredictions, predict_file
from tg_lpe.prediction.predictor import Predictions, Predictor, Refusal, load

__all__ = ["FilePredictions", "Predictions", "Predictor", "Refusal", "load", "predict_file"]
