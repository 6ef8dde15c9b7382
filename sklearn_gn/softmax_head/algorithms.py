"""The algorithms of FGNSoftmaxHead by name: in memory, of sparse rows, of chunks."""

from sklearn_gn.softmax_head import baselines, fgn
from sklearn_gn.softmax_head.chunked import chunked_algorithm
from sklearn_gn.softmax_head.newton import NEWTON
from sklearn_gn.softmax_head.sparse_newton import SPARSE_NEWTON

ALGORITHMS = {a.name: a for a in (NEWTON, fgn.FGN, *baselines.ALGORITHMS)}
SPARSE_ALGORITHMS = {a.name: a for a in (SPARSE_NEWTON,)}
CHUNKED_ALGORITHMS = {
    name: chunked_algorithm(name, *parts)
    for name, *parts in (
        ("fgn", fgn.fgn_epoch, fgn.static_arguments),
        ("sgn", baselines.sgn_epoch, baselines.krylov_dimension, baselines.sgn_start),
        ("adam", baselines.adam_epoch, baselines.no_arguments, baselines.adam_start),
    )
}
