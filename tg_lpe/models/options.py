"""Options that a model's argument holds as a mapping: names, defaults and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

from tg_lpe.arguments import check_choice, check_count, check_shares
from tg_lpe.data.spec import LEVELS
from tg_lpe.nn.features import ENCODING_NORMS

T = TypeVar("T", bound="Options")

READOUTS = ("mlp", "paper", "pyramid")
PE_MERGES = ("add", "concat", "apart")
POOLINGS = ("mean", "sum", "max", "both")
TOKEN_POOLINGS = ("token", "mean", "sum", "max")
TOKEN_LEVELS = (*LEVELS, "edge")


@dataclass(frozen=True)
class Options:
    """Base class of dataclasses whose fields are the options of one argument."""

    short: ClassVar[str | None] = None
    """The option that a value other than a mapping stands for; ``None`` if only mappings are allowed."""

    @classmethod
    def mapping_of(cls, name: str, value: Any) -> dict[str, Any]:
        """Return the options in the value of an argument.

        Raises:
            ValueError: if the value must be a mapping but is not, or an option is unknown.
        """
        if value is None:
            return {}
        allowed = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping):
            if cls.short is None:
                raise ValueError(f"{name} must be a dictionary with any of {allowed}, got {value!r}")
            return {cls.short: value}
        for option, given in value.items():
            if option not in allowed:
                raise ValueError(f"{name} takes the options {allowed}, got {option}={given!r}")
        return dict(value)

    @classmethod
    def of(cls: type[T], name: str, value: Any) -> T:
        """Return all options of an argument, including defaults.

        Raises:
            ValueError: if an option is unknown or out of range, see :meth:`mapping_of`.
        """
        return cls(**cls.mapping_of(name, value))

    def to_dict(self) -> dict[str, Any]:
        """Return all options by name."""
        return asdict(self)


@dataclass(frozen=True)
class ReadoutOptions(Options):
    """Options of the pooling and the map to predictions, see :class:`~tg_lpe.GraphTransformer`.

    Raises:
        ValueError: if an option is out of range, or pooling is set for ``level="node"``, which does not pool.
        TypeError: if ``hidden`` is neither a name nor a sequence of widths.
    """

    short = "hidden"
    hidden: str | Sequence[int] = "mlp"
    pooling: str = "mean"
    norm: str | None = None
    level: str = "graph"

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, str | Sequence):
            raise TypeError(f"readout must be one of {READOUTS}, hidden widths or a dictionary, got {self.hidden!r}")
        if isinstance(self.hidden, str) and self.hidden not in READOUTS:
            raise ValueError(f"readout must be one of {READOUTS}, hidden widths or a dictionary, got {self.hidden!r}")
        for number, width in enumerate(() if isinstance(self.hidden, str) else self.hidden):
            check_count(f"readout hidden[{number}]", width)
        check_choice("readout pooling", self.pooling, POOLINGS)
        check_choice("readout level", self.level, LEVELS)
        if self.norm == "graph":
            raise ValueError("readout norm='graph' would make all features zero: a graph has one pooled row")
        if self.level == "node" and (self.pooling != "mean" or self.norm is not None):
            raise ValueError(f"readout level='node' does not pool, got pooling={self.pooling!r} and norm={self.norm!r}")

    def widths(self, hidden_channels: int) -> list[int]:
        """Return the hidden widths of the map."""
        if not isinstance(self.hidden, str):
            return list(self.hidden)
        pyramid = [max(hidden_channels // 2, 1), max(hidden_channels // 4, 1)]
        return {"mlp": [hidden_channels], "paper": [1], "pyramid": pyramid}[self.hidden]


@dataclass(frozen=True)
class TokenReadoutOptions(Options):
    """Options of the read-out of tokens, see :class:`~tg_lpe.models.TupleTransformer`.

    Raises:
        ValueError: if an option is out of range, or pooling is set for a level that does not pool.
    """

    pooling: str = "token"
    level: str = "graph"

    def __post_init__(self) -> None:
        check_choice("readout pooling", self.pooling, TOKEN_POOLINGS)
        check_choice("readout level", self.level, TOKEN_LEVELS)
        if self.level != "graph" and self.pooling != "token":
            raise ValueError(f"readout level={self.level!r} does not pool, got pooling={self.pooling!r}")


@dataclass(frozen=True)
class EncodingOptions(Options):
    """Options of the input of positional encodings.

    Raises:
        ValueError: if an option is out of range.
    """

    edge_channels: int | None = None
    norm: bool | Literal["unit"] = False

    def __post_init__(self) -> None:
        check_choice("pe_options norm", self.norm, ENCODING_NORMS)
        if self.edge_channels is not None:
            check_count("pe_options edge_channels", self.edge_channels)


@dataclass(frozen=True)
class MergedEncodingOptions(EncodingOptions):
    """Options of the input of positional encodings and their merge with features, see
    :class:`~tg_lpe.GraphTransformer`."""

    merge: str = "add"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("pe_options merge", self.merge, PE_MERGES)


@dataclass(frozen=True)
class TokenAttentionOptions(Options):
    """Options of the attention between tokens, see :class:`~tg_lpe.models.TupleTransformer`.

    Raises:
        ValueError: if an option is out of range.
    """

    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    random_features: int = 384

    def __post_init__(self) -> None:
        check_shares(dropout=self.dropout, attention_dropout=self.attention_dropout, drop_path=self.drop_path)
        check_count("random_features", self.random_features)
