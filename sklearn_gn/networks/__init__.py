"""Networks: feature extractors whose last layer the solvers make optimal."""

from importlib import import_module

__all__ = ["CNN", "MLP", "NeuralODE"]


def __getattr__(name):  # a fit loads the network that it has
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"CNN": "cnn", "MLP": "mlp", "NeuralODE": "neural_ode"}[name]
    return getattr(import_module(f"{__name__}.{module}"), name)
