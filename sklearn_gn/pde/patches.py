"""Patches: pieces of a domain or of its boundary from which points are drawn.

A patch maps uniform numbers in the unit cube to points of constant density on a piece,
and says which of them to keep. One more uniform number joins pieces: it picks one in
proportion to its measure. So a low-discrepancy sequence in the cube remains one on the
domain, and the density is constant whatever was combined. All of this is numpy.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc

METHODS = ("sobol", "halton", "uniform")
AT_ONCE = 2**20  # numbers of points drawn, or looked at, at a time
_ENOUGH, _FEW = 1024, 1e-3  # candidates, and share of them, that tell an empty patch


class Patch(NamedTuple):
    """Points of constant density on a piece, as a function of uniform numbers."""

    log_measure: float  # of the piece before any point is dropped
    n_uniforms: int
    # (n, n_uniforms) -> points (n, d), normals (n, d), kept (n,); no normals: zero
    place: Callable


def whole(measure, n_uniforms, place):
    """A patch of all points; ``place`` maps uniforms to points, or with normals."""

    def all_kept(uniforms):
        found = place(uniforms)
        points, normals = found if isinstance(found, tuple) else (found, 0 * found)
        return points, normals, np.full(len(points), True)

    return Patch(measure, n_uniforms, all_kept)


def draw(patch, n, rng, method="sobol"):
    """Draw n points of a patch: points and normals of shape (n, d).

    Sobol's sequence has at most 21,201 dimensions; beyond, numbers are uniform. A
    ValueError is raised if less than one candidate in a thousand is kept.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; the methods are {METHODS}.")
    uniforms = _uniforms(patch.n_uniforms, rng, method)
    # Sobol's sequence comes in powers of two.
    most = 1 << max(1, AT_ONCE // patch.n_uniforms).bit_length() - 1
    size = min(most, 1 << max(0, n - 1).bit_length())
    points, normals, found, total = [], [], 0, 0
    while not points or found < n:
        x, normal, kept = patch.place(uniforms(size))
        points.append(x[kept])
        normals.append(normal[kept])
        found, total = found + int(kept.sum()), total + size
        if total >= max(_ENOUGH, most) and found < _FEW * total:
            raise ValueError(
                f"{found or 'None'} of {total} sampled points lie inside the domain. "
                "Is it empty, or very thin?"
            )
        size = min(most, total)
    return np.concatenate(points)[:n], np.concatenate(normals)[:n]


def measured(patch, n, rng):
    """Draw up to n points of a patch: points, normals, and the measure they show."""
    points, normals, kept = patch.place(_uniforms(patch.n_uniforms, rng, "sobol")(n))
    return points[kept], normals[kept], np.exp(patch.log_measure) * kept.mean()


def _uniforms(n_dimensions, rng, method):
    if method == "uniform" or n_dimensions > qmc.Sobol.MAXDIM:
        return lambda n: rng.uniform(size=(n, n_dimensions))
    engine = {"sobol": qmc.Sobol, "halton": qmc.Halton}[method]
    return engine(n_dimensions, seed=int(2**31 * rng.uniform())).random


def join(patches):
    """One patch of several."""
    patches = list(patches)
    if len(patches) == 1:
        return patches[0]
    logs = np.array([patch.log_measure for patch in patches])
    weights = np.exp(logs - logs.max())
    shares = np.cumsum(weights) / weights.sum()

    def place(uniforms):
        choice = np.searchsorted(shares[:-1], uniforms[:, 0], side="right")
        order = np.argsort(choice, kind="stable")
        picked, starts = np.unique(choice[order], return_index=True)
        groups = np.split(uniforms[order, 1:], starts[1:])
        parts = [
            patches[k].place(group[:, : patches[k].n_uniforms])
            for k, group in zip(picked, groups, strict=True)
        ]
        back = np.argsort(order)
        return tuple(np.concatenate(part)[back] for part in zip(*parts, strict=True))

    total = logs.max() + np.log(weights.sum())
    return Patch(total, 1 + max(patch.n_uniforms for patch in patches), place)


def select(patch, keep):
    """The part of a patch for which ``keep(points, normals)`` is true."""

    def place(uniforms):
        points, normals, kept = patch.place(uniforms)
        return points, normals, kept & keep(points, normals)

    return patch._replace(place=place)


def product(first, second):
    """The patch of pairs of points of two patches."""
    cut = first.n_uniforms

    def place(uniforms):
        a, b = first.place(uniforms[:, :cut]), second.place(uniforms[:, cut:])
        return np.hstack([a[0], b[0]]), np.hstack([a[1], b[1]]), a[2] & b[2]

    measure = first.log_measure + second.log_measure
    return Patch(measure, cut + second.n_uniforms, place)
