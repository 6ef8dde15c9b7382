"""The algorithms of ShallowReLURegressor by name."""

from sklearn_gn.shallow_relu import baselines
from sklearn_gn.shallow_relu.search import SGGN, VPGN

ALGORITHMS = {a.name: a for a in (VPGN, SGGN, *baselines.ALGORITHMS)}
