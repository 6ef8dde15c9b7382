"""GNvpro on the convection-diffusion-reaction surrogate of its paper, beside peers."""

from benchmarks._surrogates import (
    NOTES,
    Plan,
    paper_figures,
    quick_plan,
    run_surrogate,
    surrogate,
)
from sklearn_gn.datasets import make_cdr
from sklearn_gn.networks import NeuralODE
from sklearn_gn.solvers import GNvpro

SAMPLES = 800
SECONDS = 60.0
PAPER = {
    "full GN": paper_figures(0.0115, 0.0138, 0.0142),
    "Adam, 1200 units": paper_figures(0.0091, 0.0114, 0.0116),
    "L-BFGSvpro": paper_figures(0.0171, 0.0219, 0.0260),
    "GNvpro": paper_figures(0.0045, 0.0057, 0.0060),
}
PLAN = Plan(
    network=NeuralODE(8, final_time=4.0, n_cells=2, n_levels=3, input_gain=0.05),
    units=600,
    seconds=SECONDS,
    adam_batches=(2, 16),
    aims={"units": 0.0060, "seconds": 0.0012},
    paper=PAPER,
    timed={
        "gnvpro_dense": {
            "solver": GNvpro(curvature="dense", batch_size=None),
            "rank": None,
            "alpha": 1e-6,
        }
    },
)
NODES, PAPER_NODES, QUICK_NODES = 51, 151, 11


def run(args):
    n_nodes = PAPER_NODES if args.paper_size else NODES
    n_nodes = QUICK_NODES if args.quick else n_nodes
    n_samples = 80 if args.quick else SAMPLES
    bunch = make_cdr(
        n_samples, n_nodes=n_nodes, data_home=args.data, return_X_y=False, verbose=1
    )
    plan = PLAN._replace(seconds=args.seconds or SECONDS)
    plan = quick_plan(PLAN, args.seconds) if args.quick else plan
    description = f"CDR, {n_nodes} x {n_nodes} nodes"
    problem = surrogate(description, bunch, quick=args.quick)
    notes = [
        *NOTES,
        f"The data are those of sklearn_gn.datasets.make_cdr on {n_nodes} x {n_nodes} "
        f"nodes. The paper has {PAPER_NODES} x {PAPER_NODES}, and does not print the "
        "points of observation.",
        "The penalties of gnvpro_dense are those with the best validation figure of "
        "1e-7, 1e-6 and 3e-6.",
    ]
    return {"problems": run_surrogate("cdr", problem, plan, args), "notes": notes}
