"""Check arguments; the error messages quote the value and say what is allowed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch_geometric import EdgeIndex, Index
from torch_geometric.data.data import BaseData

WITHOUT_EDGE_INDEX = "a graph without edges has an empty edge_index, [2, 0]; put ToSparseTensor after the encoding"
HOMOGENEOUS = "to_homogeneous() makes one graph of HeteroData"
"""Ends of the error messages for graphs without ``edge_index``, and for ``HeteroData``."""

LARGEST = 1e30
"""Largest real argument: products with larger ones overflow in float32."""

ROWS = ["in_channels", "edge_dim", "max_nodes", "max_paths", "batch_size", "rows_per_shard", "num_graphs", "num_nodes"]
BOUNDS = {"num_layers": 1_000, "num_blocks": 1_000, "loops": 10, "seed": 2**63 - 1, **dict.fromkeys(ROWS, 2**40)}
"""Largest integers of arguments. Other counts, such as channels or steps, are at most 100,000."""


class ArgumentError(ValueError):
    """Report a wrong argument; the message can spell arguments as in Python or as on a command line.

    The message of ``ArgumentError("{} holds a run: continue it with {resume}", path, resume=True)`` ends in
    ``resume=True`` in Python, and in ``--resume`` on the command line.

    Args:
        template: the message, with ``{}`` for each value in order and ``{name}`` for each argument.
        values: values to quote.
        arguments: arguments by name, with the value to show; ``...`` for any value.
    """

    def __init__(self, template: str, *values: object, **arguments: object) -> None:
        self.template, self.values, self.arguments = template, values, arguments
        super().__init__(self.told(lambda name, value: name if value is ... else f"{name}={value!r}"))

    def told(self, write: Callable[[str, object], str]) -> str:
        """Return the message with each argument formatted by ``write(name, value)``."""
        written = {name: write(name, value) for name, value in self.arguments.items()}
        return self.template.format(*self.values, **written)

    def about(self, subject: object) -> ArgumentError:
        """Return the same error with a subject before the message."""
        return ArgumentError("{}: " + self.template, subject, *self.values, **self.arguments)

    def __reduce__(self) -> tuple[Callable[..., ArgumentError], tuple[object, ...]]:
        """Support pickling, so that the error can pass between processes."""
        return partial(ArgumentError, self.template, *self.values, **self.arguments), ()


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer from ``least`` to its bound, see :data:`BOUNDS`."""
    check_counts(least=least, **{name: value})


def check_counts(*, least: int = 1, **counts: object) -> None:
    """Call :func:`check_count` for each keyword argument."""
    for name, value in counts.items():
        most = BOUNDS.get(name, 100_000)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{name} must be an integer from {least} to {most:,}, got {value!r}{number_hint(value)}")


def check_seed(seed: object) -> None:
    """Raise ``ValueError`` unless ``seed`` is an integer from 0 to ``2 ** 63 - 1``."""
    check_count("seed", seed, least=0)


def check_folder(name: str, path: object) -> None:
    """Raise ``ValueError`` for an empty string, which a path would take for the current folder."""
    if path == "":
        raise ValueError(f"{name} must name a folder, got ''; '.' is the current folder")


def number_hint(value: object) -> str:
    """Return the end of an error message for numbers of NumPy and PyTorch, which a checkpoint cannot hold."""
    is_one = isinstance(value, np.number) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    return "; pass a Python number" if is_one else ""


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def check_flags(**flags: object) -> None:
    """Raise ``ValueError`` unless each keyword argument is ``True`` or ``False``."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_options(name: str, options: object) -> None:
    """Raise ``ValueError`` unless ``options`` is a mapping from argument names to values, or ``None``."""
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"{name} must be a dictionary from argument names to values, got {options!r}")


def check_shares(or_zero: bool = True, **shares: object) -> None:
    """Raise ``ValueError`` unless each keyword argument is positive, or zero with ``or_zero``, and below 1."""
    for name, value in shares.items():
        if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value < 1 and (or_zero or value)):
            least = f"{'at least' if or_zero else 'above'} 0 and below 1"
            raise ValueError(f"{name} must be {least}, got {value!r}{number_hint(value)}")


def check_positive(name: str, value: object, or_zero: bool = False) -> None:
    """Raise ``ValueError`` unless ``value`` is positive, or zero with ``or_zero``, and at most :data:`LARGEST`."""
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value <= LARGEST and (or_zero or value)):
        least = "at least 0" if or_zero else "above 0"
        raise ValueError(f"{name} must be {least} and at most {LARGEST:g}, got {value!r}{number_hint(value)}")


def checked_numbers(name: str, values: object) -> tuple[float, ...]:
    """Convert a tensor or a sequence of numbers to floats; raise ``TypeError`` for anything else."""
    numbers: object = values.tolist() if isinstance(values, torch.Tensor) else values
    if isinstance(numbers, Iterable) and not isinstance(numbers, str):
        numbers = [v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for v in numbers]
    if not isinstance(numbers, list) or not all(isinstance(v, Real) and not isinstance(v, bool) for v in numbers):
        raise TypeError(f"{name} must be a sequence of numbers, got {numbers!r}")
    return tuple(map(float, numbers))


def checked_non_negative(name: str, values: object) -> tuple[float, ...]:
    """Convert one or more numbers from 0 to :data:`LARGEST` to floats; raise ``TypeError`` or ``ValueError`` else."""
    numbers = checked_numbers(name, values)
    if not numbers or not all(0 <= number <= LARGEST for number in numbers):
        raise ValueError(f"{name} must be one or more numbers from 0 to {LARGEST:g}, got {numbers}")
    return numbers


def check_strings(name: str, names: object) -> None:
    """Raise ``TypeError`` unless ``names`` is a sequence of strings, or ``None``."""
    if names is None:
        return
    if not isinstance(names, Collection) or isinstance(names, str) or not all(isinstance(each, str) for each in names):
        example = names if isinstance(names, str) else "y"
        raise TypeError(f"{name} must be a sequence of names such as [{example!r}], got {names!r}")


def check_no_effect(reason: str, **options: tuple[object, object]) -> None:
    """Raise ``ValueError`` if an unused option, passed as ``(value, default)``, differs from its default."""
    for name, (value, default) in options.items():
        if value != default:
            raise ValueError(f"{name}={value!r} would have no effect with {reason}")


def check_type(name: str, value: object, kind: type, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is a ``kind``; ``hint`` says where to get one."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}{hint}, got {type(value).__name__}")


FORMS = {str: "a string", int: "an integer", bool: "true or false", Real: "a number"}
"""How error messages name the types of JSON values."""


def check_form(name: str, value: object, form: Any) -> None:
    """Raise ``ValueError`` unless a JSON value has a form.

    Args:
        name: place of the value, for the message.
        value: the value.
        form: one of :data:`FORMS`; ``[form]`` for a list of any length; ``(form, form)`` for a list of that length; a
            dictionary with the form of each entry of an object, or of every entry as ``...``. Entries of an object may
            be null or absent; others are not checked.
    """
    pending = [(name, value, form)]
    for place, part, expected in pending:
        if isinstance(expected, Mapping):
            if not isinstance(part, Mapping):
                raise ValueError(f"{place} must be an object, got {part!r:.80}")
            for key, entry in part.items():
                if entry is not None and (entry_form := expected.get(key, expected.get(...))) is not None:
                    pending.append((f"{place}.{key}", entry, entry_form))
        elif isinstance(expected, list | tuple):
            length = len(expected) if isinstance(expected, tuple) else None
            if not isinstance(part, list | tuple) or length not in (None, len(part)):
                raise ValueError(f"{place} must be a list{f' of {length}' if length else ''}, got {part!r:.80}")
            pending += zip(itertools.repeat(f"an entry of {place}"), part, itertools.repeat(expected[0]))
        elif not isinstance(part, expected) or isinstance(part, bool) != (expected is bool):
            raise ValueError(f"{place} must be {FORMS[expected]}, got {part!r:.80}")


def check_rows(name: str, rows: object) -> None:
    """Raise ``TypeError`` unless ``rows`` is a tensor with a dimension of rows, or ``None``."""
    if rows is None or (isinstance(rows, torch.Tensor) and rows.dim() > 0):
        return
    hint = ""
    if isinstance(rows, BaseData):
        hint = "; instead of model(data) write model(data.x, data.edge_index, data.edge_attr, data.batch)"
    elif isinstance(rows, np.ndarray | list | tuple):
        hint = f"; torch.as_tensor({name}) makes one"
    raise TypeError(f"{name} must be a tensor with a row for each node, edge or graph, got {rows!r:.80}{hint}")


def checked_device(name: str, device: str | torch.device) -> torch.device:
    """Return the device of a name; raise ``ValueError`` if it cannot be used here."""
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without the device
        raise ValueError(f"{name} {device} cannot be used here: {str(error).splitlines()[0]}") from error
    return checked


def check_devices(**tensors: object) -> None:
    """Raise ``ValueError`` unless all tensors among the arguments are on one device; no check in a trace."""
    devices = {name: each.device for name, each in tensors.items() if isinstance(each, torch.Tensor)}
    if not torch.compiler.is_compiling() and len(set(devices.values())) > 1:
        places = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"all tensors must be on one device, got {places}; data.to(device) moves those of a graph")


def rows_hint(name: str, rows: int, expected: int, what: str) -> str:
    """Return the end of an error message: how many rows a tensor needs, or nothing if it has them.

    Args:
        name: the argument.
        rows, expected: the tensor's number of rows, and the number of nodes or directed edges.
        what: ``"node"`` or ``"edge"``.
    """
    if rows == expected or what not in ("node", "edge"):
        return ""
    counted = f"{expected} nodes" if what == "node" else f"{expected} columns of edge_index"
    both = f", in both directions: to_undirected(edge_index, {name})" * (what == "edge" and 2 * rows == expected)
    return f"; {name} needs a row for each of the {counted}{both}"


def outside_nodes(num_nodes: int, low: int, high: int) -> str:
    """Return the error message for an ``edge_index`` whose numbers, from ``low`` to ``high``, are not all of nodes."""
    hint = ""
    if low == 1 and high == num_nodes:
        hint = "; nodes are numbered from 0: pass edge_index - 1"
    elif low >= 0:
        hint = f"; num_nodes, or the rows of x, batch or pe, must count {high + 1} nodes"
    return f"edge_index must lie in 0..{num_nodes - 1} (num_nodes={num_nodes}), got {low}..{high}{hint}"


def check_generator(generator: object) -> None:
    """Raise ``TypeError`` unless ``generator`` is a ``torch.Generator`` or ``None``."""
    if isinstance(generator, torch.fx.Proxy):  # torch.fx passes one for each argument
        raise TypeError(f"torch.fx, and so to_hetero, cannot trace this module; {HOMOGENEOUS}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}; pass torch.Generator()")


def as_plain(tensor: Any) -> Any:
    """Return the plain tensor of PyTorch Geometric's ``EdgeIndex`` or ``Index``; anything else unchanged."""
    return tensor.as_tensor() if isinstance(tensor, (EdgeIndex, Index)) else tensor


def check_heads(hidden_channels: int, heads: int) -> None:
    """Raise ``ValueError`` unless ``heads`` divides ``hidden_channels``."""
    check_counts(hidden_channels=hidden_channels, heads=heads)
    if hidden_channels % heads:
        raise ValueError(f"heads must divide hidden_channels, got heads={heads} and hidden_channels={hidden_channels}")
