"""The automatic mechanisms that can be switched off, and what a fit does instead.

The names are those of :mod:`sklearn_gn._switches`; what stands before the dot says
in which rooms of the gates a mechanism can act.
"""

ROOMS = {
    "pinn": ("equations",),
    "tables": ("tables", "surrogates"),
    "varpro": ("tables", "surrogates"),
    "shallow_relu": ("tables", "surrogates", "lines"),
    "segmented": ("lines",),
    "heads": ("heads",),
}

SWITCHES = {
    # PINNSolver: what the network is given
    "pinn.waves": "Cosines and sines of the wave vectors that source and values show, "
    "are inputs of the network. Off: none; waves that the equation lets pass may still "
    "be (pinn.dispersion).",
    "pinn.dispersion": "Waves that a linear equation lets pass are inputs of the "
    "network. Off: none.",
    "pinn.corners": "Singular functions of corners, of crossing interfaces, and of "
    "right angles at which the values contradict the equation, are inputs. Off: none.",
    "pinn.logarithms": "Logarithms of axes along which an equation has the terms "
    "u_rr + n u_r / r are inputs. Off: none.",
    "pinn.breaks": "Jumps and kinks of initial values are looked for. Off: none are "
    "found, so an axis on which there are some may be closed to a circle, and the "
    "statement is judged as if they were carried along.",
    "pinn.similarity": "Solutions of the heat equation from these jumps and kinks are "
    "inputs. Off: the breaks are known, and have no functions.",
    "pinn.circles": "Periodic axes become circles, without their conditions. Off: the "
    "conditions are fitted.",
    # PINNSolver: what counts how much
    "pinn.units": "The outputs have the centre and the size that the problem shows. "
    "Off: zero and one.",
    "pinn.balance": "Residual classes of far too large or too small size, and rows of "
    "a class whose sizes are far apart, count in units of their sizes. Off: as they "
    "are stated.",
    "pinn.observation_weight": "The weight of noisy observations falls until the "
    "solution no longer follows the noise. Off: it stays one.",
    # PINNSolver: how a fit goes on
    "pinn.growth": "Network and points grow while this pays. Off: the first network, "
    "of two layers of 20, and its points stay.",
    "pinn.windows": "Long times of ordinary differential equations, and those along "
    "which the errors of partial ones grow, are cut into windows. Off: one network for "
    "all time.",
    "pinn.starts": "A fit that is stuck begins anew with another network. Off: it "
    "ends, or goes on.",
    "pinn.eigenvalues": "An eigenvalue problem begins with a function of one sign, "
    "coefficients that are held, and heavier conditions. Off: as any problem.",
    # tables
    "tables.linear_member": "The linear model takes the place of networks that it "
    "beats, in VarProNetRegressor and ShallowReLURegressor. Off: the networks stay.",
    "tables.feature_removal": "Features that the evidence has switched off leave the "
    "hidden layer. Off: they stay, with their penalties.",
    "varpro.wide_members": "Half of the members of a classifier, or more, are wide "
    "networks fitted by mini-batches. Off: all are small, by the evidence. (Where a "
    "table is so large that all are wide, nothing is asked.)",
    "varpro.growth": "Networks of regressions on many rows grow. Off: the "
    "first size stays.",
    # broken lines
    # heads
    "heads.temperature": "The logits get the factor that predicts rows best that are "
    "left out, for each penalty that is tried. Off: one.",
    "heads.whitening": "The features are rotated to principal axes for the Newton "
    "steps. Off: each is only scaled.",
}
