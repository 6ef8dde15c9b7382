"""Known functions in a network: what a statement shows of its solution.

``posed`` makes the problem that the default network is given, ``NAMES`` are the
families of known functions that ``DNGD(enrichment=...)`` takes.
"""

from sklearn_gn.pinn.enrichment.posed import NAMES, PosedProblem, posed

__all__ = ["NAMES", "PosedProblem", "posed"]
