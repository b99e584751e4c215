"""Predict with trained models for molecules, graphs and files."""

from tg_lpe.app.prediction.file import FilePredictions, predict_file
from tg_lpe.app.prediction.loading import load, load_many
from tg_lpe.app.prediction.predictions import Outside, Predictions, Refusal
from tg_lpe.app.prediction.predictor import Predictor

__all__ = ["FilePredictions", "Outside", "Predictions", "Predictor", "Refusal", "load", "load_many", "predict_file"]
