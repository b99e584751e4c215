"""Files as the world has them: malformed tables of molecules, JSON, tensors and archives."""

from __future__ import annotations

import json
import lzma
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

LONG = 10_000_000
"""Characters of a long line."""

WORDS = """C CCO c1ccccc1 CC(=O)Oc1ccccc1C(=O)O C1CC1 [nH]1cccc1 F/C=C/F C[C@H](N)C(=O)O [Na+].[Cl-] CC(=O)[O-].[K+]
C.C.C.C [2H]O[2H] [13CH4] [CH3] [O] [CH2] C[N]C [H][H] [Xx] [Uuo] [Og] * [*:1]C [U] [C+5] C(C)(C)(C)(C)C N(=O)(=O)=O
[Fe]C O=[Cl](=O)=O c1cccc1 c1ccccc C1CC C( C) (((( ]]]] [ C%99CC%99 C%(123)CC%(123) C~C C$C C->N # #comment smiles NaN
None 0 -1 = <script>alert(1)</script> Ç"""
SMILES = (
    *(*WORDS.split(), "", " ", "\t", "=cmd|' /C calc'!A0", "C\u200bC", "\u2028", "C\x00C", "C\x1bC", "\x7f"),
    *("C" * 300, "C1" + "C" * 3000 + "1", "c1" + "c" * 401 + "1", "C(" * 500 + "C" + ")" * 500, "." * 100),
    *("C." * 300 + "C", "[" + "9" * 400 + "C]", "[C+" + "9" * 30 + "]"),
)
"""Strings that molecules are read from, good and bad."""


@dataclass(frozen=True)
class FileInput:
    """The content of a file, and how it is malformed."""

    kind: str
    content: bytes


def random_file(rng: Random, valid: Sequence[bytes] = ()) -> FileInput:
    """A file that is probably malformed; with well-formed files, some answers are one of these, damaged."""
    kind = rng.choice([*FILES, *(DAMAGES if valid else ())])
    if kind in FILES:
        return FileInput(kind, FILES[kind](rng))
    return FileInput(kind, DAMAGES[kind](rng, rng.choice(list(valid))))


def _table(rng: Random) -> bytes:
    """Lines or a table, with any line ends, in any encoding."""
    header = rng.choice(("smiles", "smiles,y", "SMILES,id,y", "id,smiles,smiles", "y", "", ",,,", "#"))
    cells = (*SMILES, "1.5", "nan", "inf", "1e400", "x", '"', '"a,b"')
    rows = [
        ",".join([rng.choice(SMILES), *(rng.choice(cells) for _ in range(header.count(",")))])
        for _ in range(rng.choice((0, *range(1, 20))))
    ]
    newline = rng.choice(("\n", "\n", "\r\n", "\r"))
    text = newline.join([header, *(rows * rng.choice((1, 1, 3)))]) + newline * rng.randint(0, 2)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1", "utf-32"))
    return text.encode(encoding, "replace").replace(b"C", rng.choice((b"C", b"C", b"\xff", b"\x00")))


def _noise(rng: Random) -> bytes:
    return rng.randbytes(rng.choice((1, 7, 8, 9, 100, 5000)))


def _long_line(rng: Random) -> bytes:
    size = rng.choice((LONG, LONG, 200_000))
    text = rng.choice(("C", "c", "(", "[", ".", "1", " ", ",", '"', "{", "0", "C1CC", "C.", "C(")) * size
    before = rng.choice(("", "smiles\n", "smiles,y\n", '{"a": '))
    return (before + text[:size] + rng.choice(("", "\n", "\nC\n"))).encode()


def _ring(rng: Random) -> bytes:
    """Large rings, cages and chains, plain and aromatic."""
    n = rng.choice((100, 1000, 5000, 20_000))
    chains = ("C1" + "C" * n + "1", "c1" + "c" * (2 * (n // 2)) + "1", "C(" * n + "C" + ")" * n)
    fused = "c1ccc2c(c1)" + "ccc2c(c1)" * min(n // 10, 200)
    ladder = "C1CC2" + "C2C1" * (n // 10)
    return ("smiles\n" * rng.randint(0, 1) + rng.choice((*chains, fused, ladder, "C%11" * n, "[C@@H]" * n))).encode()


def _json_bomb(rng: Random) -> bytes:
    depth = rng.choice((100, 2000, 100_000, 1_000_000))
    wide = min(depth, 100_000)
    bombs: list[Callable[[], str]] = [
        lambda: "[" * depth + "]" * rng.choice((0, depth)),
        lambda: '{"a":' * depth + "1" + "}" * depth,
        lambda: rng.choice(("", '{"layout": ')) + "9" * wide,
        lambda: '{"class": "GramTransformer", ' + rng.choice(('"out_channels": 1e999}', '"class": "RandomWalk"}')),
        lambda: '"' + "a" * depth + '"',
        lambda: "{" + ",".join(f'"{i}": {i}' for i in range(wide)) + "}",
        lambda: rng.choice(("[NaN, Infinity]", '"\\ud800"', '{"class": "\\ud800"}', '{"\\u0000": null}')),
    ]
    return rng.choice(bombs)().encode()


NUMBERS = (0, -1, 1.5, 10**9, 10**30, -(10**18), 1e308, float("nan"), float("inf"))
STRINGS = ("", "GramTransformer", "../../../etc/passwd", "\ud800", "x" * 1000)
JSON_VALUES = (None, True, False, *NUMBERS, *STRINGS, [], {}, [[]], [None], {"class": "GramTransformer"})


def _altered_json(rng: Random, content: bytes) -> bytes:
    """Valid JSON whose values are of other types or sizes, or absent."""
    try:
        document = json.loads(content)
    except ValueError:
        return content[::-1]
    for _ in range(rng.randint(1, 3)):
        holder = document
        while isinstance(holder, dict | list) and holder:
            key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            inner = holder[key]  # type: ignore[index]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
                holder = inner
                continue
            if rng.random() < 0.25:
                del holder[key]  # type: ignore[arg-type]
            else:
                holder[key] = rng.choice(JSON_VALUES)  # type: ignore[index]
            break
    return json.dumps(document).encode()


def _tensors(rng: Random) -> bytes:
    """A safetensors file with an absurd header."""
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    shapes = ([10**6, 10**6], [2**62, 4], [-1, -4], [])
    metadata = ({"json": rng.choice(("{", "[]", "1", "null", '{"a":' * 1000))}, {"json": 1}, 3, {"json": "{}"})
    headers: list[Any] = [
        *({"a": {**entry, "shape": shape}} for shape in shapes),
        *({"a": {**entry, "data_offsets": offsets}} for offsets in ([0, 2**63], [16, 0])),
        {"a": {**entry, "dtype": rng.choice(("F8_E5M2", "X", "", None, "U64", "BF16"))}},
        *({"__metadata__": value, "a": entry} for value in metadata),
        *({"a": entry, "b": entry}, {"a": {}}, {"a": 1}, [], {"\ud800": entry}),
        {f"{i}": {**entry, "shape": [0], "data_offsets": [0, 0]} for i in range(5000)},
    ]
    header = json.dumps(rng.choice(headers)).encode()
    length = rng.choice((len(header),) * 8 + (0, 1, 2**31, 2**40, 2**63, 2**64 - 1))
    return struct.pack("<Q", length) + header + bytes(16)


def _archive(rng: Random) -> bytes:
    """Archives: truncated, doubled, of noise, and small ones of much."""
    packed = lzma.compress(rng.choice((_table(rng), b"", b"C" * LONG, b"\n" * LONG)), preset=0)
    cut = packed[: rng.choice((len(packed) // 2, len(packed) - 5))]
    return rng.choice((packed, cut, packed * 2, packed + b"x", packed[:6] + _noise(rng)))


FILES: dict[str, Callable[[Random], bytes]] = {
    "noise": _noise,
    "zeros": lambda rng: bytes(rng.choice((0, 1, 8, 10_000))),
    "long line": _long_line,
    "lines": lambda rng: "\n".join(rng.choice(SMILES) for _ in range(rng.randint(1, 30))).encode("utf-8", "replace"),
    **{f"table {number}": _table for number in range(5)},
    "quotes": lambda rng: b'smiles,y\n"C' + b'"' * rng.randint(0, 3) + b",1\nCC,2\n" * rng.randint(0, 3),
    "rings": _ring,
    "JSON": _json_bomb,
    "tensors": _tensors,
    "archive": _archive,
}
"""Files by what is odd about them."""


def _truncated(rng: Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flipped(rng: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 30)) if content else 0):
        # Half of them near the start, where headers are.
        changed[rng.randrange(min(len(changed), rng.choice((200, len(changed)))))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _spliced(rng: Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice((_noise(rng), b"\x00" * 100, content)) + content[at:]


DAMAGES: dict[str, Callable[[Random, bytes], bytes]] = {
    "truncated": _truncated,
    "bits flipped": _flipped,
    "bytes inserted": _spliced,
    "values altered": _altered_json,
    "as it should be": lambda rng, content: content,
}
"""What may happen to a well-formed file."""
