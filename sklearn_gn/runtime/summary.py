"""Tables of a fit as text and as HTML."""

from dataclasses import dataclass
from html import escape

import numpy as np


@dataclass(eq=False, repr=False)
class Summary:
    """Tables of a fit; ``print`` shows them as text, a notebook as HTML.

    Attributes
    ----------
    title : str
    facts : dict
        Figures of the whole fit by name.
    tables : dict
        By heading a dict of columns, each an array with one entry for each line.
    notes : list of str
    """

    title: str
    facts: dict
    tables: dict
    notes: list

    def __str__(self):
        blocks = [_text_table(name, table) for name, table in self.tables.items()]
        width = max(len(line) for block in blocks for line in block)
        facts = _text_facts(self.facts, width)
        width = max(width, *map(len, facts))
        lines = [self.title.center(width).rstrip(), "=" * width, *facts]
        for block in blocks:
            lines += ["=" * width, block[0], "-" * width, *block[1:]]
        lines += ["=" * width, *self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        facts = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(cell(value))}</td></tr>"
            for name, value in self.facts.items()
        )
        parts = [f"<h4>{escape(self.title)}</h4><table>{facts}</table>"]
        for name, table in self.tables.items():
            head = "".join(f"<th>{escape(column)}</th>" for column in table)
            body = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
                for line in zip(*(map(cell, c) for c in table.values()), strict=True)
            )
            parts.append(
                f"<table><caption>{escape(name)}</caption><thead><tr>{head}</tr>"
                f"</thead><tbody>{body}</tbody></table>"
            )
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        return "".join(parts)


def _text_facts(facts, width):
    """Return the figures in two columns."""
    items = [(f"{name}:", cell(value)) for name, value in facts.items()]
    half = -(-len(items) // 2)
    left, right = items[:half], items[half:] + [("", "")] * (2 * half - len(items))
    room = max((width - 3) // 2, *(len(name) + len(value) + 2 for name, value in items))
    return [
        f"{a}{b.rjust(room - len(a))}   {c}{d.rjust(room - len(c))}".rstrip()
        for (a, b), (c, d) in zip(left, right, strict=True)
    ]


def _text_table(name, table):
    """Return the lines of a table; the first one is its head."""
    columns = [list(map(cell, column)) for column in table.values()]
    widths = [
        max(len(head), *map(len, column))
        for head, column in zip(table, columns, strict=True)
    ]
    widths[0] = max(widths[0], len(name))
    heads = [name, *list(table)[1:]]
    lines = []
    for cells in [heads, *zip(*columns, strict=True)]:
        rest = map(str.rjust, cells[1:], widths[1:])
        lines.append("  ".join([cells[0].ljust(widths[0]), *rest]))
    return lines


def cell(value):
    """Return a number as text, and text as it is."""
    if isinstance(value, str):
        return value
    value = float(value)
    if not np.isfinite(value):
        return "" if np.isnan(value) else str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.5g}"


def digits(values, width):
    """Return positions as text with as many digits as their uncertainty asks for."""
    width = width[np.isfinite(width) & (width > 0)]
    size = np.abs(values[np.isfinite(values)]).max(initial=0)
    if not (len(width) and size > 0):
        return values
    digits = int(np.clip(np.ceil(np.log10(size / width.min())) + 2, 5, 16))
    texts = []
    for value in values:
        if not (np.isfinite(value) and 1e-4 <= abs(value) < 1e16):
            texts.append(cell(value))
            continue
        # Digits after the point, so that all positions are rounded alike.
        places = digits - 1 - int(np.floor(np.log10(size)))
        text = f"{value:.{max(places, 0)}f}"
        texts.append(text.rstrip("0").rstrip(".") if "." in text else text)
    return np.array(texts)
