"""Compilation by the size of the data."""

import numpy as np

from sklearn_gn.arrays import compilation
from sklearn_gn.arrays.compilation import jit_by_size


def test_unknown_options_are_dropped(monkeypatch):
    monkeypatch.setattr(compilation, "_CHEAP", {"xla_no_such_option": 1})
    double = jit_by_size(lambda x: 2 * x)
    for _ in range(2):
        assert float(double(np.float32(3))) == 6
