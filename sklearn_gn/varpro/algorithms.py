"""The algorithms of VarProNetRegressor and VarProNetClassifier by name."""

from sklearn_gn.varpro import baselines
from sklearn_gn.varpro.gnvpro import GNVPRO

ALGORITHMS = {a.name: a for a in (GNVPRO, *baselines.ALGORITHMS)}
