"""Runs sorted into data sets and rows: never ranked across data, one row where only the seed differs."""

from __future__ import annotations

import inspect
import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tg_lpe.data.splits import PARTS
from tg_lpe.encoders.registry import ENCODERS
from tg_lpe.models import MODELS
from tg_lpe.report.figures import BLUE, ENCODING_COLORS, SPARE_COLORS
from tg_lpe.report.runs import DATA_SIZES, NOT_SETTINGS, UNNAMED, Run
from tg_lpe.report.values import DASH, figure_form, figure_text, first_of, mapping_in, number_in, text_in
from tg_lpe.training.config import READ_BY, TrainConfig
from tg_lpe.training.run_folder import checkpoint_label

ENTRY = ("edge_encoding", "pe_norm")
"""How an encoding enters the model. If two rows differ in one of these settings, all rows that have it show it."""

SIZES = tuple(f"num_{part}" for part in PARTS)
_FLOATS = TrainConfig.float_fields()
# Names of known sets: the name does not tell the path, so two sets of one name may differ.
_NAMED = ("zinc", "zinc12k", "qm9")
# Besides the data itself, a digest depends on how it was divided and read.
_DIGEST_FOLLOWS = ("split", "atom_types", "bond_types", "target")


RANKED_BY = ("level", "num_targets", "metric")
"""Settings that a task's figures depend on; runs that agree in these are compared, whatever their loss."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of a figure over seeds; one seed has no deviation."""

    mean: float
    std: float | None
    count: int

    def __str__(self) -> str:
        if self.std is None:
            return figure_text(self.mean)
        return f"{figure_text(self.mean)} ± {format(self.std, figure_form(self.mean))}"


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in the seed: all finished, or all unfinished.

    Attributes:
        runs: by seed.
        settings: those that had an effect, without the seed; arguments of the encoder are named ``encoder.NAME``.
        label: what distinguishes it from the other variants on the same data.
        color: of its marks in every picture.
    """

    runs: tuple[Run, ...]
    settings: Mapping[str, Any]
    label: str = ""
    color: str = BLUE

    @property
    def encoder(self) -> str | None:
        """Class of the encoder, ``None`` for none."""
        return self.settings.get("encoder")

    @property
    def finished(self) -> bool:
        """Whether the runs have ended."""
        return self.runs[0].finished

    @property
    def seeds(self) -> list[str]:
        """The seeds, as text."""
        return [str(run.settings.get("seed", DASH)) for run in self.runs]

    @property
    def test(self) -> Spread | None:
        """Test figure over seeds."""
        return spread_of([run.test_error for run in self.runs])

    @property
    def validation(self) -> Spread | None:
        """Validation figure over seeds."""
        return spread_of([run.validation_error for run in self.runs])

    def column(self, name: str) -> Spread | None:
        """Test figure of one of several columns of labels over seeds."""
        return spread_of([run.column_errors().get(name) for run in self.runs])

    @property
    def speed(self) -> float | None:
        """Median graphs per second over all epochs of all runs."""
        column = [value for run in self.runs for _, value in run.curve("graphs_per_second")]
        return statistics.median(column) if column else None


@dataclass(frozen=True)
class Group:
    """All runs of one kind on one data set.

    Attributes:
        kind: ``train`` or ``pretrain``.
        source: what the data was called, numbered where other data goes by the same name.
        data: its description, of the first run.
        variants: best first, unfinished ones last; pretrainings in the order they were named.
    """

    kind: str
    source: str
    data: Mapping[str, Any]
    variants: tuple[Variant, ...]

    @property
    def figure_title(self) -> str:
        """The figure that rows are ranked by, as tables print it."""
        return self.variants[0].runs[0].figure_title

    @property
    def larger_is_better(self) -> bool:
        """Whether larger values of it are better."""
        return self.variants[0].runs[0].larger_is_better

    @property
    def ranked(self) -> list[Variant]:
        """Finished variants with a finite test figure, best first; none for pretrainings, whose losses differ."""
        if self.kind != "train":
            return []
        return [v for v in self.variants if v.finished and v.test is not None and math.isfinite(v.test.mean)]

    @property
    def best(self) -> Variant | None:
        """The best test figure, where there is something to compare it with."""
        return self.ranked[0] if len(self.ranked) > 1 else None

    def baseline(self, variant: Variant) -> Variant | None:
        """The runs without a positional encoding whose other settings are the same."""
        for other in self.ranked:
            if other.encoder is None and _apart_from_encoding(other) == _apart_from_encoding(variant):
                return other
        return None

    def beside_baseline(self, variant: Variant) -> tuple[float, float] | None:
        """Test figures of a variant and of its :meth:`baseline`, means over the seeds that both have run with."""
        base = self.baseline(variant)
        if base is None or variant.encoder is None or variant not in self.ranked:
            return None
        own, other = ({run.settings.get("seed"): run.test_error for run in v.runs} for v in (variant, base))
        pairs = [(a, b) for a, b in ((own[seed], other.get(seed)) for seed in own) if a is not None and b is not None]
        if not pairs:
            return None
        return statistics.fmean(a for a, _ in pairs), statistics.fmean(b for _, b in pairs)

    def difference(self, variant: Variant) -> float | None:
        """Test figure less that of :meth:`baseline`, over the seeds of both; ``None`` without any."""
        baseline = self.beside_baseline(variant)
        return None if baseline is None else baseline[0] - baseline[1]

    @property
    def columns(self) -> list[str]:
        """Columns of labels that have figures of their own, where there are several."""
        runs = [run for variant in self.variants for run in variant.runs]
        return list(dict.fromkeys(name for run in runs for name in run.column_errors()))

    def constant(self, part: str = "test", column: str | None = None) -> Spread | None:
        """Figure of the median of the training labels, over the seeds of all runs; ``None`` if no run tells it.

        Args:
            part: ``"test"`` or ``"val"``.
            column: one of :attr:`columns`, for its figure on the test set; all together if absent.
        """
        by_seed: dict[Any, float] = {}
        for run in (run for variant in self.variants for run in variant.runs):
            value = run.constant_error(part) if column is None else run.column_errors(constant=True).get(column)
            if value is not None:
                by_seed.setdefault(run.settings.get("seed"), value)
        values = list(by_seed.values())
        return spread_of(values[:1] if len(set(values)) == 1 else values)  # one split for all seeds has one constant

    def is_constant(self, variant: Variant) -> bool:
        """Whether the runs of a variant are, in the mean, no better than :meth:`constant`."""
        pairs = [(run.test_error, run.constant_error("test")) for run in variant.runs]
        known = [(own, other) for own, other in pairs if own is not None and other is not None]
        return bool(known) and sum(own for own, _ in known) >= sum(other for _, other in known)

    @property
    def title(self) -> str:
        """The data, and what is predicted: the columns of the labels and the metric."""
        if self.kind != "train":
            return f"{self.source}, pretraining"
        columns = [str(column) for column in target_of(self.data) if column is not None]
        rest = [f"{len(columns) - 3} more"] if len(columns) > 3 else []
        named = ", ".join([*columns[:3], *rest])
        return f"{self.source}, {named} ({self.figure_title})" if named else f"{self.source} ({self.figure_title})"

    @property
    def sizes(self) -> str:
        """Graphs of each split, or labelled nodes where nodes are predicted, in words; empty if not known."""
        for prefix, noun in (("num_labelled_", "labelled nodes"), ("num_", "graphs")):
            counts = [(part, number_in(self.data, f"{prefix}{part}")) for part in PARTS]
            if text := ", ".join(f"{count:,.0f} {part}" for part, count in counts if count is not None):
                return f"{text} {noun}"
        return ""


def compare(runs: Sequence[Run]) -> list[Group]:
    """Sort runs into data sets and rows.

    Args:
        runs: in any order.

    Returns:
        One group per kind of run and data set, trainings first.
    """
    by_data: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.kind != "train"):
        by_data.setdefault(_data_key(run), []).append(run)
    names: Counter[tuple[str, str]] = Counter()
    groups = []
    for group in (_group(part) for alike in by_data.values() for part in _by_digest(alike)):
        names[group.kind, group.source] += 1
        number = names[group.kind, group.source]
        groups.append(group if number == 1 else replace(group, source=f"{group.source} ({number})"))
    return groups


def _data_key(run: Run) -> str:
    """Equal for runs on the same data, as far as words tell; :func:`_by_digest` tells the rest apart.

    A file or folder is known by its path; its constants follow from its split, which may be drawn by the seed.
    """
    names = (*SIZES, "normalization", "atom_types") if run.source in _NAMED else SIZES
    task = [run.task.get(name) for name in RANKED_BY]
    what = [*task, target_of(run.data)] if run.kind == "train" else []
    if run.source == UNNAMED:
        what.append(run.data.get("spec"))  # no path tells data from Python apart
    if mapping_in(run.data, "split").get("kind") == "scaffold":
        what.append("scaffold")  # a harder split of the same file
    return json.dumps([run.kind, run.source, *(run.data.get(name) for name in names), *what], sort_keys=True)


def target_of(data: Mapping[str, Any]) -> list[Any]:
    """Return the columns of the labels, or what they were computed as; empty if the folder does not say."""
    target = mapping_in(data, "target")
    computed = target.get("computed")
    return [computed, None] if computed is not None else list(target.get("columns") or [])


def _by_digest(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that are alike in all words about their data, by the digest of it, if that tells any two of them apart.

    A digest covers the split and the numbers of atom types: two of them tell data apart where these agree, such as two
    files split by one seed. Which of the other seeds belong to which file is not known then, so each digest is apart.
    """
    found: dict[str, set[str]] = {}
    for run in runs:
        if (digest := text_in(run.data, "digest")) is not None:
            how = json.dumps([run.data.get(name) for name in _DIGEST_FOLLOWS], sort_keys=True)
            found.setdefault(how, set()).add(digest)
    if all(len(digests) == 1 for digests in found.values()):
        return [list(runs)]
    parts: dict[str | None, list[Run]] = {}
    for run in runs:
        parts.setdefault(text_in(run.data, "digest"), []).append(run)
    return list(parts.values())


def _effective(run: Run) -> dict[str, Any]:
    """The settings that had an effect, without the seed."""
    # Mean and standard deviation are those of the training set, which another seed may have drawn otherwise.
    task = {name: value for name, value in run.task.items() if name not in (*RANKED_BY, "name", "mean", "std")}
    task |= {"scaled labels": True} if "mean" in run.task else {}
    settings = {**_encoder_settings(run), **_defaults(run), **run.settings, **task, "task": run.task.get("name")}
    settings |= {name: float(value) for name, value in settings.items() if name in _FLOATS and isinstance(value, int)}
    settings |= _options("attention_options", settings.pop("attention_options", None))
    if (bonds := run.data.get("bond_types")) is not None:
        settings["features"] = "types" if bonds else "ogb"
    idle = {"seed"}
    if run.kind == "train" and run.encoder is None:
        idle |= {"pe_norm", "pe_lr", "encoder_lr"}
    if number_in(run.result, "encoder_parameters") == 0:
        idle.add("encoder_lr")
    idle |= {name for name, schedule in READ_BY.items() if settings.get("schedule", schedule) != schedule}
    if run.precision is not None:
        settings["precision"] = run.precision
    return {name: value for name, value in settings.items() if name not in idle}


def _options(name: str, value: Any) -> dict[str, Any]:
    """Options within options as settings of their own, ``NAME.OPTION``."""
    if not isinstance(value, Mapping):
        return {} if value is None else {name: value}
    return {key: each for inner, part in value.items() for key, each in _options(f"{name}.{inner}", part).items()}


def _defaults(run: Run) -> dict[str, Any]:
    """Settings that a training has if its folder does not say them."""
    if run.kind != "train":
        return {}
    loop = {name: value for name, value in TrainConfig().to_dict().items() if name != "epochs"}  # which all runs say
    model = _default_arguments(MODELS[run.model], NOT_SETTINGS) if run.model in MODELS else {}
    return {"model": run.model, "start": None, **model, **loop}


def _default_arguments(cls: type, left_out: Collection[str]) -> dict[str, Any]:
    """Defaults of a constructor, as JSON gives them back."""
    parameters = inspect.signature(cls).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in left_out}
    return json.loads(json.dumps(defaults, default=str))  # type: ignore[no-any-return]


def _encoder_settings(run: Run) -> dict[str, Any]:
    """Class and arguments of the encoder but for sizes of the data, with the defaults of a class that is known here."""
    if run.encoder is None:
        return {"encoder": None}
    name = str(run.encoder.get("class", "unknown"))
    arguments = {key: value for key, value in run.encoder.items() if key != "class" and key not in DATA_SIZES}
    if name in ENCODERS:
        arguments = {**_default_arguments(ENCODERS[name], DATA_SIZES), **arguments}
    settings: dict[str, Any] = {"encoder": name}
    if "edge_out_channels" in arguments:
        settings["edge_encoding"] = arguments["edge_out_channels"] != 0
        if not arguments["edge_out_channels"]:
            del arguments["edge_out_channels"]
    if run.pretrained is not None:
        return {**settings, "pretrained": run.pretrained}  # the checkpoint decides all its arguments
    for key, value in arguments.items():
        if isinstance(value, dict) and "class" in value:  # an encoder inside another
            inside = _encoder_settings(replace(run, encoder=value))
            settings |= {name if name == "edge_encoding" else f"encoder.{name}": one for name, one in inside.items()}
        else:
            settings[f"encoder.{key}"] = value
    return settings


def _group(runs: Sequence[Run]) -> Group:
    """Runs on the same data, as rows."""
    copies: Counter[str] = Counter()
    members: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_seed_order):
        key = json.dumps([_effective(run), run.finished, run.test_error is None], sort_keys=True)
        seed = json.dumps([key, run.settings.get("seed")])
        copies[seed] += 1  # the same seed again adds no spread: a row of its own
        members.setdefault(f"{key}{copies[seed]}", []).append(run)
    order = {id(run): number for number, run in enumerate(runs)}
    effective = [_effective(same[0]) for same in members.values()]
    options = {name: None for each in effective for name in each if name.startswith("attention_options.")}
    settings = [{**options, **each} for each in effective]
    variants = [Variant(tuple(same), own) for same, own in zip(members.values(), settings, strict=True)]
    variants.sort(key=lambda v: min(order[id(run)] for run in v.runs) if runs[0].kind != "train" else _rank(v))
    return Group(runs[0].kind, runs[0].source, runs[0].data, _told_apart(variants))


def _seed_order(run: Run) -> tuple[float, str]:
    return first_of(number_in(run.settings, "seed"), math.inf), str(run.path)


def _rank(variant: Variant) -> tuple[int, float]:
    spread = variant.test if variant.finished else variant.validation
    finite = spread is not None and math.isfinite(spread.mean)
    value = spread.mean if spread is not None and finite else 0.0
    return 2 * (not variant.finished) + (not finite), -value if variant.runs[0].larger_is_better else value


def _told_apart(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The same variants with labels and colours of their own."""
    bases = [_base_label(variant) for variant in variants]
    entry = differing([{name: v.settings[name] for name in ENTRY if name in v.settings} for v in variants])
    spare, used, labels = list(SPARE_COLORS), set[str](), Counter[str]()
    named = []
    for base, variant in zip(bases, variants, strict=True):
        alike = [v.settings for b, v in zip(bases, variants, strict=True) if b == base]
        names = dict.fromkeys([*differing(alike), *(name for name in entry if name in variant.settings)])
        words = {name: variant.settings.get(name, DASH) for name in names}
        settings_given = {name: value for name, value in words.items() if value is not None or "_options." not in name}
        label = ", ".join([base, *(_in_words(*item) for item in settings_given.items())])
        labels[label] += 1
        color = ENCODING_COLORS.get(variant.encoder)
        if color is None or color in used:
            color = spare[0]
            spare = spare[1:] + spare[:1]
        used.add(color)
        number = f" ({labels[label]})" if labels[label] > 1 else ""
        named.append(replace(variant, label=label + number, color=color))
    return tuple(named)


def _base_label(variant: Variant) -> str:
    if variant.encoder is None:
        return "none"
    label = variant.encoder
    if pretrained := variant.settings.get("pretrained"):
        label += f" from {checkpoint_label(str(pretrained))}"
    if kernels := variant.settings.get("kernels"):
        label += f", {' and '.join(map(str, kernels))} kernels"
    return label


_SWITCHES = {"edge_encoding": "edge encoding", "pe_norm": "normalized encoding"}
_KINDS = ("attention", "global_attention", "local", "pooling", "basis", "probes", "norm", "readout")


def _in_words(name: str, value: Any) -> str:
    """A setting as part of a label."""
    if name == "model":
        return str(value)
    if name == "start":
        return "from scratch" if value is None else f"from {checkpoint_label(value)}"
    name = name.rpartition(".")[2]
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {_SWITCHES.get(name, name.replace('_', ' '))}"
    if name in _KINDS:
        return f"{'no' if value == 'none' else value} {name.replace('_', ' ')}"
    return "all channels" if (name, value) == ("out_channels", None) else f"{name} {value}"


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of settings that are not the same in all; a precision of ``auto`` does not count as different."""
    values: dict[str, set[str]] = {}
    for each in settings:
        for name, value in each.items():
            if (name, value) != ("precision", "auto"):
                values.setdefault(name, set()).add(str(value))
    return [name for name, different in values.items() if len(different) > 1]


def of_encoding(name: str) -> bool:
    """Whether a setting belongs to the encoding; runs that agree in all others are compared like with like."""
    return name.startswith("encoder") or name in ("pretrained", "pe_lr", *ENTRY)


def _apart_from_encoding(variant: Variant) -> dict[str, Any]:
    return {name: value for name, value in variant.settings.items() if not of_encoding(name)}


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """Mean and deviation of the values that are not ``None``; ``None`` if all are."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if not all(map(math.isfinite, present)):
        return Spread(math.nan, None, len(present))
    return Spread(statistics.fmean(present), statistics.stdev(present) if len(present) > 1 else None, len(present))
