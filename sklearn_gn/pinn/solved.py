"""Whether an equation is solved, measured by losses that no solution has."""

import numpy as np

# Losses on fresh points, relative to that of the untrained network: below these the
# equation is solved, it is solved so well that the error need not be estimated, the
# solution is accurate even if the network overfits, and nothing is left to gain.
SOLVED_LOSS, WELL_SOLVED_LOSS = 1e-6, 1e-10
_ACCURATE_LOSS, EXHAUSTED_LOSS = 1e-12, 1e-16
UNMET_LOSS = 1e-2  # relative to that of no solution, beyond which nothing is learnt
ROUNDING = 30  # residuals, in units in the last place, that are rounding
OVERFITTED = 100.0  # fresh over training loss
# A loss that has not fallen by FALL in so many iterations falls no longer.
FALL, FEW_ITERATIONS = 0.5, 12


def losses_of_no_solution(fresh_loss, points, settings, untrained):
    """Loss on fresh points of the untrained network, or of a constant if it is lower.

    Large coefficients make the first one huge: a constant, which meets no condition,
    would pass for a solution. Then the same of each class alone, empty where unknown.
    """
    if not points.fresh or not settings.models[-1].activations:
        return fresh_loss(points, settings, untrained), ()
    *hidden, last = untrained.layers
    constant = untrained._replace(layers=(*hidden, 0 * last))
    if not np.isfinite(fresh_loss(points, settings, constant)):
        # The equation is singular at zero, and huge near it.
        one = np.zeros_like(last)
        one[-1] = 1
        constant = untrained._replace(layers=(*hidden, one))
    rounding = (ROUNDING * np.finfo(settings.dtype).eps) ** 2

    def lower(points):
        first, level = (
            fresh_loss(points, settings, net) for net in (untrained, constant)
        )
        return min(first, level) if level > rounding * first else first

    classes = range(len(points.fresh))
    return lower(points), tuple(lower(with_class_alone(points, k)) for k in classes)


def with_class_alone(points, k):
    """The fixed points; of the fresh ones those of one class alone count."""
    fresh = tuple(
        batch._replace(scale=(i == k) * np.asarray(batch.scale))
        for i, batch in enumerate(points.fresh)
    )
    return points._replace(fresh=fresh)


def is_solved(fresh, loss, first_fresh):
    """Whether the equation holds between the points of training too."""
    return fresh <= SOLVED_LOSS * first_fresh and fresh <= OVERFITTED * max(
        loss, _ACCURATE_LOSS * first_fresh
    )


def holds_in_all_classes(classes, losses, first):
    """Whether each residual class but the observations is solved by its own measure."""
    return not any(
        loss > SOLVED_LOSS * reference
        for kind, loss, reference in zip(classes, losses, first, strict=False)
        if kind.residual.name != "data"
    )


def has_unmet_condition(classes, class_losses, first_classes):
    """Whether a condition is hardly met better than by no solution."""
    return any(
        known.residual.name not in ("interior", "data") and loss > UNMET_LOSS * first
        for known, loss, first in zip(
            classes, class_losses, first_classes, strict=False
        )
    )
