"""Networks: feature extractors whose last layer the solvers make optimal."""

from sklearn_gn.networks.cnn import CNN
from sklearn_gn.networks.mlp import MLP
from sklearn_gn.networks.neural_ode import NeuralODE

__all__ = ["CNN", "MLP", "NeuralODE"]
