"""The cases of ``python -m benchmarks frozen``, one file a method.

``CASES`` of a file has functions by name that return a fitted estimator and what it
predicts.
"""

from benchmarks._frozen import pinn, shallow_relu, softmax_head, varpro

METHODS = {
    module.__name__.rpartition(".")[2]: module.CASES
    for module in (shallow_relu, softmax_head, varpro, pinn)
}
