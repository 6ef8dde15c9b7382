"""The algorithms of ShallowReLURegressor by name."""

from sklearn_gn.shallow_relu import baselines, dense

ALGORITHMS = {a.name: a for a in (dense.VPGN, dense.SGGN, *baselines.ALGORITHMS)}
