"""Problems of DeepXDE's demos and of textbooks, stated in sklearn_gn.pde.

Each module has functions that return a :class:`Demo`; their names are those of the
rows. ``DEMOS`` are all forward and inverse demos of DeepXDE 1.15 but those with
fractional derivatives, one that only searches hyperparameters of another, and one whose
data, a simulated wake, no package has. ``TEXTBOOK`` are further problems, which were
stated before any of them was solved.
"""

from benchmarks._demos import evolution, inverse, one_dimension, stationary, textbook
from benchmarks._demos.common import Demo

__all__ = ["DEMOS", "TEXTBOOK", "Demo"]

DEMOS = {
    name: function
    for module in (one_dimension, stationary, evolution, inverse)
    for name, function in module.ROWS.items()
}
TEXTBOOK = textbook.ROWS
