"""The comparison as figures to keep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tg_lpe.report.groups import SIZES, Group, Spread, Variant, compare
from tg_lpe.report.runs import Run
from tg_lpe.report.table import notes_on
from tg_lpe.report.values import mapping_in

_MACHINE = ("processor", "cores", "threads", "cpu_capability", "accelerator", "system")


def benchmark_json(runs: Sequence[Run]) -> dict[str, Any]:
    """The comparison as figures, fit for strict JSON: what is not finite becomes ``None``.

    Args:
        runs: in any order.

    Returns:
        ``{"runs": [...], "comparison": [...]}``: each run's command, settings, result, machine and versions; and the
        rows of the table by data set, as numbers.
    """
    values = {
        "runs": [_run_figures(run) for run in runs],
        "comparison": [
            {
                "kind": group.kind,
                "data": group.source,
                **{name: group.data.get(name) for name in SIZES},
                "rows": [_variant_figures(group, variant) for variant in group.variants],
                "notes": notes_on(group),
            }
            for group in compare(runs)
        ],
    }
    figures: dict[str, Any] = _finite(values)
    return figures


def _run_figures(run: Run) -> dict[str, Any]:
    speed = [value for _, value in run.curve("graphs_per_second")]
    skipped = run.data.get("skipped")
    return {
        "name": run.name,
        "kind": run.kind,
        "command": run.environment.get("command"),
        "finished": run.finished,
        "epochs": run.epochs,
        "encoder": None if run.encoder is None else dict(run.encoder),
        "pretrained": run.pretrained,
        "task": dict(run.task),
        "settings": dict(run.settings),
        "data": {name: value for name, value in run.data.items() if name != "skipped"}
        | {"num_skipped": len(skipped) if isinstance(skipped, list) else None},
        "result": None if run.result is None else dict(run.result),
        "validation_error": run.validation_error,
        "training_seconds": run.seconds,
        "graphs_per_second": statistics.median(speed) if speed else None,
        "machine": {name: run.environment.get(name) for name in _MACHINE},
        "versions": {"python": run.environment.get("python"), **mapping_in(run.environment, "packages")},
    }


def _variant_figures(group: Group, variant: Variant) -> dict[str, Any]:
    def figures(spread: Spread | None) -> dict[str, Any] | None:
        return None if spread is None else {"mean": spread.mean, "std": spread.std, "seeds": spread.count}

    return {
        "label": variant.label,
        "runs": [run.name for run in variant.runs],
        "finished": variant.finished,
        "best": variant is group.best,
        f"test_{variant.runs[0].figure}": figures(variant.test),
        f"val_{variant.runs[0].figure}": figures(variant.validation),
        "against_none": group.difference(variant),
        "graphs_per_second": variant.speed,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
