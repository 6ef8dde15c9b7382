"""The algorithms of ShallowReLURegressor by name."""

from sklearn_gn.shallow_relu import baselines, joint, sggn
from sklearn_gn.shallow_relu.dense import DenseEngine
from sklearn_gn.shallow_relu.search import search

VPGN = search("vpgn", DenseEngine(joint))
SGGN = search("sggn", DenseEngine(sggn))

ALGORITHMS = {a.name: a for a in (VPGN, SGGN, *baselines.ALGORITHMS)}
