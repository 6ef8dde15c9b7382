"""Runner: ``python -m benchmarks`` lists the experiments, with a name it runs one.

Every module of this folder whose name has no leading underscore is an experiment. It
has a docstring, whose first line is listed, and a function ``run(args) -> dict``, whose
answer the runner writes as JSON and prints as tables.
"""

import argparse
import ast
import importlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent

# OpenBLAS reads these when it is loaded: they choose and tune its kernels, and figures
# taken under them would be those of another machine.
KERNEL_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

LITTLE_OPTIMISATION = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):  # others refuse it
    LITTLE_OPTIMISATION += " --xla_cpu_use_fusion_emitters=false"


def experiments():
    """Names of the experiments with the first lines of their docstrings."""
    paths = sorted(p for p in HERE.glob("*.py") if not p.stem.startswith("_"))
    docstrings = {p.stem: ast.get_docstring(ast.parse(p.read_text())) for p in paths}
    return {name: text.splitlines()[0] for name, text in docstrings.items()}


def parse(argv):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(experiments()))
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that it runs"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="default 5; sggn* 10; pinn_* 3, or 1 where a fit takes more than 300 "
        "seconds; quick 1",
    )
    parser.add_argument(
        "--out", type=Path, help="default results/NAME.json, nowhere if quick"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=HERE / "data",
        metavar="DIR",
        help="where data sets are kept, default benchmarks/data",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PROBLEM",
        help="run these problems; in the file, the others stay as they are "
        "(device_fits, fgn_heads, head_path, scale, varpro_*, pinn_* and sggn*); "
        "frozen, gates: what begins so",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="of a fit: varpro_cdr 60, varpro_dcr 600, pinn_* 100 to 1800",
    )
    heads = parser.add_argument_group("fgn_heads")
    heads.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="an .npz file with X_train, y_train, X_test and y_test, instead of its "
        "data sets",
    )
    varpro = parser.add_argument_group("varpro_*")
    varpro.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="of varpro_dcr, default 10,000; cases of hostile, default 10,000",
    )
    varpro.add_argument(
        "--paper-size",
        action="store_true",
        help="the paper's meshes (varpro_cdr, varpro_dcr); 40,000 training rows in "
        "batches of 10,000, for a GPU (varpro_images)",
    )
    pinn = parser.add_argument_group("pinn_peers, pinn_step, sggn_large")
    pinn.add_argument(
        "--peers",
        type=Path,
        metavar="DIR",
        help="has a virtual environment DIR/NAME for each peer, default "
        "benchmarks/data/peers",
    )
    gpu = parser.add_argument_group("gpu, ablation")
    gpu.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="no step of gpu begins that would end later, default 8, quick 5; no scan "
        "of cliffs, default 25; no row of ablation, pinn_estimates",
    )
    scale = parser.add_argument_group("scale")
    scale.add_argument(
        "--rows", type=int, metavar="N", help="of out_of_core, default 1,300,000"
    )
    gates = parser.add_argument_group("gates")
    gates.add_argument(
        "--against",
        metavar="REF",
        help="a git reference that the working tree is compared with; exit status 1 if "
        "something got worse",
    )
    frozen = parser.add_argument_group("frozen")
    frozen.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="fit again and compare with this result, write nothing; exit status 1 if "
        "a case differs",
    )
    args = parser.parse_args(argv)
    args.peers = args.peers or args.data / "peers"
    args.seeds_given = args.seeds is not None
    args.seeds = list(range(args.seeds or default_seeds(args)))
    if args.out is None and not args.quick and not args.compare:
        args.out = HERE / "results" / f"{args.name}.json"
    return args


def default_seeds(args):
    """How many seeds, where none are asked for."""
    if args.quick:
        return 1
    return 10 if str(args.name).startswith("sggn") else 5


def main(argv=None):
    args = parse(argv)
    if args.name is None:
        for name, line in experiments().items():
            print(f"{name:18s} {line}")
        return
    if args.name == "gpu":  # its steps are processes that share the memory of the GPU
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if args.name == "hostile":  # nearly all of its time is compilation
        os.environ.setdefault("XLA_FLAGS", LITTLE_OPTIMISATION)
    # Here, so that the list needs no import of JAX.
    from benchmarks._report import environment, plain, tables

    start = environment()  # before the run, whose own load it would show

    def write(answer):
        """Write an answer to the file, if there is one; return the whole result."""
        result = plain(
            {
                "experiment": args.name,
                "quick": args.quick,
                **start,
                "seeds": args.seeds,
                **answer,
            }
        )
        if args.out is None:
            return result
        if args.only and args.out.exists():
            kept = json.loads(args.out.read_text())["problems"]
            result["problems"] = {**kept, **result["problems"]}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
        return result

    args.write = write  # for experiments that write as they go
    answer = importlib.import_module(f"benchmarks.{args.name}").run(args)
    print(tables(write(answer)))


def restart_without_kernel_variables():
    """Replace this process by one that does not see them."""
    kept = {k: v for k, v in os.environ.items() if k not in KERNEL_VARIABLES}
    if len(kept) < len(os.environ):
        os.execve(sys.executable, sys.orig_argv, kept)


if __name__ == "__main__":
    restart_without_kernel_variables()
    main()
