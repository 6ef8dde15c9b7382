"""What the figures share: colours and names of the methods, and parts of a result."""

import itertools

import numpy as np

STYLES = {  # by name of the method in the results; the same in every figure
    "adam": {"label": "Adam", "color": "tab:blue"},
    "sgd": {"label": "SGD", "color": "tab:cyan"},
    "fgn": {"label": "FGN", "color": "tab:green"},
    "fgn_cached": {"label": "FGN, Grams kept", "color": "tab:green", "ls": "--"},
    "fgn_uncached": {"label": "FGN, Grams rebuilt", "color": "tab:green", "ls": ":"},
    "sgn": {"label": "SGN", "color": "tab:orange"},
    "gnvpro": {"label": "GNvpro", "color": "tab:red"},
    "lbfgs_vpro": {"label": "L-BFGSvpro", "color": "tab:purple"},
    "gn": {"label": "Full GN", "color": "tab:brown"},
}
OTHER_COLORS = ("tab:pink", "tab:olive", "tab:gray", "black", "gold", "navy")


def styles(methods):
    """Label and colour of every method; an unknown one gets a colour of its own."""
    others = itertools.cycle(OTHER_COLORS)
    for name in methods:
        yield STYLES.get(name) or {"label": name, "color": next(others)}


def part(parts, name, what):
    """A problem or a method of a result, by name."""
    if name not in parts:
        raise ValueError(f"The result has no {what} {name!r}; it has {sorted(parts)}.")
    return parts[name]


def numbers(values):
    """An array, with NaN for the null of JSON."""
    return np.array(values, dtype=float)
