"""Indices that are out of range, in functions of points and fields.

For an index beyond the last entry of an array that is traced, JAX takes the last entry
and says nothing: with two axes ``x[2]`` is ``x[1]``, and another equation is solved. An
index in the range becomes a static slice, one beyond it a dynamic slice from a start
that is computed from numbers alone.
"""

import jax
import numpy as np

_KNOWN = {  # what JAX computes of an index that is a number
    "lt": np.less,
    "add": np.add,
    "select_n": lambda which, *cases: cases[int(which)],
}


def check_indices(jaxpr, axes):
    """Raise an IndexError if a number that indexes an array is out of its range.

    Parameters
    ----------
    jaxpr : ClosedJaxpr or Jaxpr
        A traced function of points and fields.
    axes : tuple of str
        Those of the points.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    known = {}

    def value(atom):
        return atom.val if hasattr(atom, "val") else known.get(atom)  # a literal

    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(tuple(equation.params.values())):
            if hasattr(inner, "eqns"):
                check_indices(inner, axes)
        name, values = equation.primitive.name, [value(v) for v in equation.invars]
        if name == "dynamic_slice":
            sizes = equation.params["slice_sizes"]
            shape = equation.invars[0].aval.shape
            for start, size, n in zip(values[1:], sizes, shape, strict=True):
                if start is not None and not 0 <= start <= n - size:
                    raise IndexError(_out_of_range(int(start), n, axes))
        elif name in _KNOWN and all(v is not None for v in values):
            known[equation.outvars[0]] = _KNOWN[name](*values)


def _out_of_range(start, n, axes):
    index = start if start > 0 else start - n
    return (
        f"index {index} is out of range: there are {n} entries, numbered from 0. The "
        f"coordinates of a point x are those of the axes {axes}, x[0] the first."
    )
