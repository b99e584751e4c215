"""Find the settings of a run, and label rows by the settings in which they differ."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from tg_lpe.app.report.format import DASH
from tg_lpe.app.report.runs import NOT_SETTINGS, Run
from tg_lpe.app.training.run_folder import checkpoint_label
from tg_lpe.data import DataSpec
from tg_lpe.encoders.registry import ENCODERS

RANKED_BY = ("level", "num_targets", "metric")
"""Task settings that must agree for runs to be compared; their losses may differ."""

ENTRY = ("edge_encoding", "pe_options.norm")
"""How an encoding enters the model. If rows differ in one of these settings, all labels show it."""

DATA_SIZES = {"class", *DataSpec().to_dict()}


def effective_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run, without the seed and sizes of the data."""
    is_training, data = run.kind == "train", run.data
    settings = _encoder_settings(run.encoder, run.pretrained)
    if is_training:
        settings |= {"model": run.model, "start": None}
    # Leave out mean and std: they depend on the training set, which may depend on the seed.
    task = {name: value for name, value in run.task.items() if name not in (*RANKED_BY, "name", "mean", "std")}
    settings |= {**run.settings, **task, "scaled labels": "mean" in run.task, "task": run.task.get("name")}
    options = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    settings = {name: value for name, value in settings.items() if name not in options}
    flat = {key: leaf for name, value in options.items() for key, leaf in _flattened(name, value).items()}
    settings |= {key: leaf for key, leaf in flat.items() if key not in NOT_SETTINGS}
    if data.get("bond_types") is not None:
        settings["features"] = "types" if data["bond_types"] else "ogb"
    settings["weight_column"] = data.get("weight_column")
    settings["extra_columns"] = ", ".join(data.get("extra_columns", ())) or None
    settings["descriptors"] = "RDKit" if data.get("descriptors") else None
    settings["precision"] = run.precision
    del settings["seed"]
    return settings


def _encoder_settings(encoder: Mapping[str, Any] | None, pretrained: str | None = None) -> dict[str, Any]:
    """Return class and arguments of an encoder, without sizes of the data."""
    if encoder is None:
        return {"encoder": None}
    arguments = {key: value for key, value in encoder.items() if key not in DATA_SIZES}
    name = str(encoder.get("class", "unknown"))
    settings: dict[str, Any] = {"encoder": name}
    if "edge_out_channels" in arguments:
        known = inspect.signature(ENCODERS[name]).parameters if name in ENCODERS else None
        if known is None or arguments["edge_out_channels"] != 0 or known["edge_out_channels"].default != 0:
            settings["edge_encoding"] = arguments["edge_out_channels"] != 0
        if not arguments["edge_out_channels"]:
            del arguments["edge_out_channels"]
    if pretrained is not None:
        return {**settings, "pretrained": pretrained}  # the checkpoint determines all arguments
    for key, value in arguments.items():
        if isinstance(value, dict) and "class" in value:  # an encoder inside another
            inner = _encoder_settings(value)
            settings |= {name if name == "edge_encoding" else f"encoder.{name}": part for name, part in inner.items()}
        else:
            settings[f"encoder.{key}"] = value
    return settings


def _flattened(name: str, value: Any) -> dict[str, Any]:
    """Flatten nested options to settings ``NAME.OPTION``."""
    if not isinstance(value, Mapping):
        return {} if value is None else {name: value}
    return {key: leaf for inner, part in value.items() for key, leaf in _flattened(f"{name}.{inner}", part).items()}


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Label each row by its encoder and the settings in which it differs from other rows with the same encoder."""
    bases = [_encoder_label(row) for row in settings]
    entry = differing([{name: row[name] for name in ENTRY if name in row} for row in settings])
    result: list[str] = []
    for base, row in zip(bases, settings, strict=True):
        same_encoder = differing([other for b, other in zip(bases, settings, strict=True) if b == base])
        names = dict.fromkeys([*same_encoder, *(name for name in entry if name in row)])
        parts = [(name, row.get(name, DASH)) for name in names]
        of_options = ("readout.", "attention_options.", "pe_options.")
        parts = [(name, value) for name, value in parts if value is not None or not name.startswith(of_options)]
        label = ", ".join([base, *(_in_words(name, value) for name, value in parts)])
        result.append(label)
    numbers = [result[:index].count(label) + 1 for index, label in enumerate(result)]
    return [f"{label} ({number})" if number > 1 else label for label, number in zip(result, numbers, strict=True)]


def _encoder_label(settings: Mapping[str, Any]) -> str:
    label = settings.get("encoder") or "none"
    if pretrained := settings.get("pretrained"):
        label += f" from {checkpoint_label(str(pretrained))}"
    if kernels := settings.get("kernels"):
        label += f", {' and '.join(map(str, kernels))} kernels"
    return str(label)


def _in_words(name: str, value: Any) -> str:
    """Describe a setting for a label."""
    if name == "model":
        return str(value)
    if name == "start":
        return "from scratch" if value is None else f"from {checkpoint_label(value)}"
    return f"{name.rpartition('.')[2]} {value}"


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings that differ between rows; precision ``auto`` equals any other."""
    values: dict[str, set[str]] = {}
    for row in settings:
        for name, value in row.items():
            if (name, value) != ("precision", "auto"):
                values.setdefault(name, set()).add(str(value))
    return [name for name, distinct in values.items() if len(distinct) > 1]


def of_encoding(name: str) -> bool:
    """Return whether a setting belongs to the encoding rather than to the model or the training."""
    return name.startswith("encoder") or name in ("pretrained", *ENTRY)
