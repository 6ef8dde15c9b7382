"""The compiled algorithms of FGNSoftmaxHead by name: in memory, and of chunks."""

from sklearn_gn.softmax_head import baselines, fgn
from sklearn_gn.softmax_head.chunked import chunked_algorithm
from sklearn_gn.softmax_head.newton import NEWTON

ALGORITHMS = {a.name: a for a in (NEWTON, fgn.FGN, *baselines.ALGORITHMS)}
CHUNKED_ALGORITHMS = {
    name: chunked_algorithm(name, *parts)
    for name, *parts in (
        ("fgn", fgn.fgn_epoch, fgn.static_arguments, fgn.walk_from),
        ("sgn", baselines.sgn_epoch, baselines.krylov_dimension, baselines.sgn_start),
        ("adam", baselines.adam_epoch, baselines.no_arguments, baselines.adam_start),
    )
}
