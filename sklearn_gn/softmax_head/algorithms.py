"""The algorithms of FGNSoftmaxHead by name."""

from sklearn_gn.softmax_head import baselines
from sklearn_gn.softmax_head.fgn import FGN
from sklearn_gn.softmax_head.newton import NEWTON
from sklearn_gn.softmax_head.sparse_newton import SPARSE_NEWTON

ALGORITHMS = {a.name: a for a in (NEWTON, FGN, *baselines.ALGORITHMS)}
SPARSE_ALGORITHMS = {a.name: a for a in (SPARSE_NEWTON,)}
