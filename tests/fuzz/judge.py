"""Throw a graph or a file at targets, and judge what becomes of it.

The answer must be finite and of the right shape and dtype, or a ValueError or TypeError that names the argument or the
file, within five seconds of processor time; the arguments must be unchanged. Anything else is a finding.
"""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from fuzz.files import random_file
from fuzz.graphs import GraphInput
from fuzz.readers import Reader
from fuzz.targets import Output, Target, in_turn
from torch import Tensor

HANG = 5.0
"""Seconds of processor time that a call may take."""


class Finding(NamedTuple):
    """Something that must not happen."""

    seed: int
    target: str
    kind: str
    """``hang``, ``error``, ``unnamed``, ``not finite``, ``form`` or ``changed``."""
    case: str
    """The defect of the graph, or the kind of the file."""
    message: str


class Hang(BaseException):
    """A call took too long."""


@contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raise :class:`Hang` after so many seconds of processor time."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judge(
    call: Callable[[], list[Output]], blamed: Sequence[str], may_refuse: bool, seconds: float = HANG
) -> tuple[str, str]:
    """Call something and return what became of it (``answered``, ``refused`` or a kind of finding) and a message.

    Args:
        call: returns its results and the forms that they must have.
        blamed: words one of which a refusal must have in its message.
        may_refuse: whether there is anything to refuse.
        seconds: of processor time that the call may take.
    """
    try:
        with limited_time(seconds):
            outputs = call()
        for output in outputs:
            if problem := _problem(output):
                return problem
    except Hang:
        return "hang", f"took more than {seconds:g} s"
    except (ValueError, TypeError) as error:
        message = str(error)
        if not may_refuse:
            return "error", f"well-formed, but {type(error).__name__}: {message}"
        if not any(re.search(rf"(?<!\w){re.escape(word)}(?![a-z])", message) for word in blamed):
            return "unnamed", f"{type(error).__name__} names none of {', '.join(blamed)}: {message}"
        return "refused", message
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "error", f"{type(error).__name__}: {error}"
    return "answered", ""


def _problem(output: Output) -> tuple[str, str] | None:
    values, shape, dtype, may_be_infinite = output
    if not isinstance(values, Tensor):
        return "form", f"expected a tensor, got {type(values).__name__}"
    fits = len(shape) == values.dim() and all(n in (None, m) for n, m in zip(shape, values.shape, strict=True))
    if not fits or values.dtype != dtype:
        return "form", f"expected {dtype} {list(shape)}, got {values.dtype} {list(values.shape)}"
    if bool(values.isnan().any()) if may_be_infinite else not bool(torch.isfinite(values).all()):
        return "not finite", f"{int((~torch.isfinite(values)).sum())} of {values.numel()} values are not finite"
    return None


def same(before: Tensor, now: Tensor) -> bool:
    """Compare two tensors bit by bit; NaN is equal to itself."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    if before.is_sparse:
        return same(before.to_dense(), now.to_dense())
    return torch.equal(before, now) or bool(((before == now) | ((before != before) & (now != now))).all())


def try_graph(seed: int, targets: Sequence[Target], graph: GraphInput, seconds: float = HANG) -> list[Finding]:
    """Run a graph through the targets whose turn it is."""
    findings = []
    tensors = graph.tensors()
    copies = [tensor.clone() for tensor in tensors]
    for target in in_turn(targets, seed):
        if not target.takes(graph):
            continue
        verdict, message = judge(
            lambda target=target: target.run(graph, seed),
            (*graph.blamed, *target.limits),
            bool(graph.blamed or target.limits),
            seconds,
        )
        if not all(map(same, copies, tensors)):
            verdict, message = "changed", f"an argument was changed (otherwise {verdict})"
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
        if verdict not in ("answered", "refused"):
            case = graph.defect or f"{graph.num_graphs} graphs, {graph.num_nodes} nodes"
            findings.append(Finding(seed, target.name, verdict, case, message[:300]))
    return findings


def try_file(seed: int, readers: Sequence[Reader], valid: Sequence[bytes]) -> list[Finding]:
    """Throw the file of a seed at readers."""
    findings = []
    file = random_file(Random(seed), valid)
    for reader in readers:
        with tempfile.TemporaryDirectory(prefix="tg_lpe-fuzz-") as name:
            folder = Path(name)
            path = reader.prepare(folder, file.content, seed)
            before = {part: part.read_bytes() for part in folder.rglob("*") if part.is_file()}
            verdict, message = judge(lambda reader=reader, path=path: reader.read(path), (path.name, name), True)
            if any(not part.is_file() or part.read_bytes() != content for part, content in before.items()):
                verdict, message = "changed", f"a file was changed (otherwise {verdict})"
        if verdict not in ("answered", "refused"):
            findings.append(Finding(seed, reader.name, verdict, file.kind, message[:300]))
    return findings
