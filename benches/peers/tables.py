"""The tables that every side puts and gets (as benches/src/shapes.rs has them), and the look at every byte of them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Rows, and by column: name, cells (`dense`, `ragged`: f32; `text`: digits), their (longest) length."""

    name: str
    rows: int
    columns: tuple[tuple[str, str, int], ...]

    def bytes(self) -> int:
        sizes = {
            "dense": lambda width: 4 * width * self.rows,
            "ragged": lambda longest: 4 * int(sum(lens(self.rows, longest))),
            "text": lambda digits: digits * self.rows,
        }
        return sum(sizes[kind](length) for _, kind, length in self.columns)


def _shape(name: str, rows: int, *cells: tuple[str, int]) -> Shape:
    return Shape(name, rows, tuple((f"c{at}", kind, length) for at, (kind, length) in enumerate(cells)))


# The first two are those of TransferQueue's perftest.py (its "Small"); the others cut 256 MiB into more and more columns.
SHAPES = {
    shape.name: shape
    for shape in [
        _shape("simple", 1024, *[("dense", 8192)] * 9),
        _shape("complex", 1024, *[("dense", 8192)] * 3, *[("ragged", 8192)] * 3, *[("text", 4 * 8192)] * 3),
        *(_shape(f"fields-{n}", 256, *[("dense", (1 << 18) // n)] * n) for n in (1, 8, 32)),
    ]
}


def lens(rows: int, longest: int) -> list[int]:
    """An arithmetic progression from 1 to the longest, as perftest.py has it."""
    step = (longest - 1) / max(rows - 1, 1)
    return [max(1, min(round(1 + row * step), longest)) for row in range(rows)]


def make(shape: Shape) -> dict[str, object]:
    """Cells by column: an array [rows, width], a flat array of all ragged cells, or a list of strings."""
    random = np.random.default_rng(1)
    table: dict[str, object] = {}
    for name, kind, length in shape.columns:
        if kind == "dense":
            table[name] = random.random((shape.rows, length), dtype=np.float32)
        elif kind == "ragged":
            table[name] = random.random(sum(lens(shape.rows, length)), dtype=np.float32)
        else:
            text = random.bytes(shape.rows * length // 2).hex()
            table[name] = [text[at : at + length] for at in range(0, len(text), length)]
    return table


def words(cells: object) -> int:
    """The sum of all 32-bit words, modulo 2^32: a look at every byte of an array, a string, or a list of these."""
    if isinstance(cells, list):
        return sum(words(cell) for cell in cells) & 0xFFFFFFFF
    if isinstance(cells, str):
        cells = np.frombuffer(cells.encode(), np.uint32)
    array = np.ascontiguousarray(cells).reshape(-1).view(np.uint32)
    return int(np.add.reduce(array, dtype=np.uint32))


def total(table: dict[str, object]) -> int:
    """The words of all columns."""
    return sum(words(cells) for cells in table.values()) & 0xFFFFFFFF
