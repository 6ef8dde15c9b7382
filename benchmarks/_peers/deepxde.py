"""DeepXDE with PyTorch: Adam, then L-BFGS, then perhaps NysNewton-CG."""

import deepxde as dde
import torch

from benchmarks._peers import _common

STAGES = {  # optimisers, and the share of the seconds that has passed at their end
    "adam_lbfgs": {"adam": 0.2, "L-BFGS": 1.0},
    "nncg": {"adam": 0.2, "L-BFGS": 0.5, "NNCG": 1.0},
}
LBFGS_STEPS = 50  # between two points of the curve
ENDLESS = 10**8
RATE = 1e-3


class Clock(dde.callbacks.Callback):
    """Keeps the curve and stops the training after some seconds."""

    def __init__(self, curve, until):
        super().__init__()
        self.curve, self.until = curve, until

    def on_epoch_end(self):
        if self.curve.due() or self.curve.done:
            self.curve.add(self._loss, self.model.predict)
        if self.curve.seconds >= self.until:
            self.model.stop_training = True

    def _loss(self):
        state = self.model.train_state
        data = state.X_train, state.y_train, state.train_aux_vars
        return self.model.outputs_losses_train(*data)[1].sum().item() / 2


def navier_stokes(x, y):
    """Balance of momentum and divergence, at all points."""
    u, v = y[:, 0:1], y[:, 1:2]

    def slope(i, j):
        return dde.grad.jacobian(y, x, i=i, j=j)

    def friction(i):
        second = (dde.grad.hessian(y, x, component=i, i=j, j=j) for j in (0, 1))
        return _common.VISCOSITY * sum(second)

    return [
        u * slope(0, 0) + v * slope(0, 1) + slope(2, 0) - friction(0),
        u * slope(1, 0) + v * slope(1, 1) + slope(2, 1) - friction(1),
        slope(0, 0) + slope(1, 1),
    ]


def model_of(task):
    values = _common.exact_velocity(task.boundary)
    conditions = [
        dde.icbc.PointSetBC(task.boundary, values[:, k : k + 1], component=k)
        for k in (0, 1)
    ]
    geometry = dde.geometry.Rectangle(_common.LOW, _common.HIGH)
    data = dde.data.PDE(geometry, navier_stokes, conditions, anchors=task.interior)
    net = dde.nn.FNN(list(task.sizes), "tanh", "Glorot normal")
    low, high = torch.tensor(_common.LOW), torch.tensor(_common.HIGH)
    net.apply_feature_transform(lambda x: 2 * (x - low) / (high - low) - 1)
    return dde.Model(data, net)


def set_lbfgs():
    """No end by itself, and a step of the training loop that is short."""
    dde.optimizers.set_LBFGS_options(maxiter=ENDLESS, ftol=0, gtol=0)
    options = dde.optimizers.config.LBFGS_options
    options |= {"iter_per_step": LBFGS_STEPS, "fun_per_step": 2 * LBFGS_STEPS}


def train(model, optimizer, curve, until):
    """One optimiser, begun anew whenever it ends by itself."""
    while curve.seconds < until:
        before = len(curve.points)
        model.compile(optimizer, lr=RATE if optimizer == "adam" else None)
        model.train(
            iterations=ENDLESS,
            display_every=ENDLESS,
            verbose=0,
            callbacks=[Clock(curve, until)],
        )
        if len(curve.points) == before:  # it cannot get any further
            return


def fit(task, curve):
    dde.config.set_default_float("float64")
    dde.config.set_random_seed(task.seed)
    set_lbfgs()
    model, stages = model_of(task), STAGES[task.method]
    model.compile("adam", lr=RATE)
    model.train(iterations=1, verbose=0)  # loads what PyTorch needs
    curve.start()
    for optimizer, share in stages.items():
        train(model, optimizer, curve, share * task.seconds)
    return {"stages": stages, "adam_rate": RATE}


if __name__ == "__main__":
    _common.main("deepxde", fit)
