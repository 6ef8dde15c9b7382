"""The Newton direction of the softmax head, in whitened features.

Conjugate gradients in single precision, preconditioned by one block a class; then the
least loss along the direction, roughly.
"""

from functools import partial

from sklearn_gn.core.libraries import in_either_library, library_of
from sklearn_gn.core.multinomial import (
    all_classes,
    hessian_product,
    is_true_class,
    newton_direction,
    probabilities,
)
from sklearn_gn.core.parts import total
from sklearn_gn.softmax_head.blocks import curvatures, in_whitened, single
from sklearn_gn.softmax_head.head import (
    AffineHead,
    gradient_norms,
    over_blocks,
    values,
    values_transposed,
)
from sklearn_gn.softmax_head.whitening import (
    counted_weights,
    from_whitened,
    gradient_to_whitened,
    to_whitened,
)

_FORCING = 0.1  # relative residual of the Newton system
_FLAT = 0.3  # part of the slope that may be left where the line search ends
_LINE_ITERATIONS = 8


@in_either_library
def whitened_newton_direction(net, gradient, data, inverses, settings):
    """Inexact Newton step in single precision, and where to try it first.

    Returns
    -------
    direction : AffineHead
    trial : scalar
        Step length near the least loss along the direction.
    slope : scalar
    iterations : scalar
    """
    rows, x = data.rows, data.x
    head, weight, penalty, shift, variance, damping, intercept = single(
        (
            to_whitened(net, data.center, data.dual),
            counted_weights(rows),
            in_whitened(settings.alpha, data.squares),
            in_whitened(settings.alpha + settings.damping, data.squares),
            data.variance,
            settings.damping,
            settings.intercept,
        )
    )
    library, n_classes = library_of(x), max(net.bias.shape[0], 2)
    xp, p = library.xp, probabilities(values(head, x))
    _, curvature = curvatures(head, x, weight)

    def product(v):
        def body(carry, x, p, weight):
            image = hessian_product(
                partial(values, x=x), partial(values_transposed, x), p, weight, v
            )
            return library.tree_map(xp.add, carry, image)

        start = library.tree_map(xp.zeros_like, v)
        image = total(over_blocks(body, start, (x, p, weight), n_classes))
        return AffineHead(
            image.weight + shift * v.weight, intercept * (image.bias + damping * v.bias)
        )

    def by_kronecker(r):
        # Whitened features times the mean curvature of each class.
        scale = variance * curvature[None, :] + shift
        return AffineHead(r.weight / scale, intercept * r.bias / (curvature + damping))

    def by_blocks(r):
        stacked = xp.concatenate([r.weight, r.bias[None, :]]).T
        solved = xp.matmul(inverses, stacked[:, :, None])[:, :, 0].T
        return AffineHead(solved[:-1], solved[-1])

    by_class = by_kronecker if inverses is None else by_blocks

    def differences(head):
        return library.tree_map(lambda a: a - xp.mean(a, axis=-1, keepdims=True), head)

    def precondition(r):
        if len(net.bias) == 1:
            return by_class(r)
        # What moves all classes alike changes no probability. The blocks do not know
        # this, and would lead CG there.
        solved = differences(by_class(differences(r)))
        common = xp.mean(r.weight, axis=1, keepdims=True)
        common = common / (shift + variance * xp.mean(curvature))
        return solved._replace(weight=solved.weight + common)

    whitened = gradient_to_whitened(gradient, data.center, data.basis)
    size, _ = gradient_norms(whitened)
    unit_step, iterations = newton_direction(
        product,
        library.tree_map(lambda g: (g / size).astype(x.dtype), whitened),
        precondition=precondition,
        forcing=_FORCING,
        max_iter=settings.cg_iterations,
    )
    direction = library.tree_map(lambda d: d.astype(size.dtype) * size, unit_step)
    slope = sum(xp.sum(d * g) for d, g in zip(direction, whitened, strict=True))
    along = single(direction)
    trial = _line_minimum(
        all_classes(values(head, x)),
        all_classes(values(along, x)),
        rows.label,
        weight,
        slope.astype(x.dtype),
        xp.sum(penalty * along.weight**2),
    )
    direction = from_whitened(direction, data.center, data.basis)
    return direction, trial.astype(size.dtype), slope, iterations


def _line_minimum(here, change, label, weight, slope, penalty_curvature):
    """Rough zero of the derivative along a direction, by Newton's method in a bracket.

    The logits ``here + t change`` need no product with the features. The loss is
    convex, so the zero is unique. ``slope`` is the derivative at zero,
    ``penalty_curvature`` the second derivative of the penalty.
    """
    library, true = library_of(here), is_true_class(label, here.shape[1])
    xp = library.xp

    def derivatives(t):
        p = library.softmax(here + t * change)
        first = library.row_products(p, change)
        second = library.row_products(p, change**2) - first**2
        at_true = xp.sum(xp.where(true, change, 0), axis=1)
        return total((weight @ (first - at_true), weight @ second))

    # What the penalty adds at zero, from the exact slope.
    at_zero, _ = derivatives(xp.zeros_like(slope))
    correction = slope - at_zero

    def improve(carry):
        t, lower, upper, _, count = carry
        first, second = derivatives(t)
        first = first + correction + t * penalty_curvature
        second = second + penalty_curvature
        lower = xp.where(first < 0, t, lower)
        upper = xp.where(first < 0, upper, t)
        newton = t - first / xp.maximum(second, xp.finfo(t.dtype).tiny)
        inside = (newton > lower) & (newton < xp.minimum(upper, 8 * t))
        middle = xp.where(xp.isinf(upper), 4 * t, (lower + upper) / 2)
        good = xp.abs(first) <= _FLAT * xp.abs(slope)
        new = xp.where(good, t, xp.where(inside, newton, middle))
        return new, lower, upper, good, count + 1

    start = xp.ones_like(slope)
    t, *_ = library.while_loop(
        lambda c: ~c[3] & (c[4] < _LINE_ITERATIONS),
        improve,
        (start, 0 * start, xp.inf * start, xp.bool_(False), xp.int32(0)),
    )
    return t
