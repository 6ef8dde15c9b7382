"""PINNSolver beside DeepXDE, jinns and scimba on Kovasznay flow, in equal seconds.

The same network, the same points, which stay, and 100 seconds for each. The peers run
in environments of their own, see ``--peers``; those that are not there are skipped.
"""

from benchmarks._pinn import NOTES as PINN_NOTES
from benchmarks._pinn import (
    QUICK_SECONDS,
    Scorer,
    columns,
    described,
    middle,
    problem_of,
    quick_case,
    recorded_fit,
    seeds_of,
    short,
)
from benchmarks._pinn_peers import NOTES, Peer, ended, missing, run_peer
from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import compile_seconds
from benchmarks.pinn_kovasznay import CASE

SECONDS = 100.0
PEERS = {
    "deepxde": Peer("deepxde", "adam_lbfgs"),
    "jinns": Peer("jinns", "adam_ssbroyden"),
    "jinns_ngd": Peer("jinns", "ngd"),
    "scimba": Peer("scimba", "eng"),
    "scimba_dsgnar": Peer("scimba", "dsgnar"),
}


def ours(case, seeds):
    """Our answer and curves, and the recorders with the points of training."""
    compiling = compile_seconds(short(case.solver), None, None)
    score = Scorer(problem_of(case.solver), case.outputs)
    recorders = [
        recorded_fit(case.solver, score, case.seconds, seed)[1] for seed in seeds
    ]
    curves = [recorder.points for recorder in recorders]
    answer = answer_of(settings(case.solver), curves, seeds, case.seconds)
    return {**answer, "compile_seconds": compiling}, curves, recorders


def answer_of(changed, curves, seeds, seconds):
    """What a result says of a method."""
    runs = [
        {"seed": seed, **ended(points, seconds)}
        for seed, points in zip(seeds, curves, strict=True)
    ]
    return {"settings": changed, "runs": runs, "summary": summary(runs)}


def theirs(args, peer, case, seeds, recorders):
    """The answer and curves of a peer, or None where it fails."""
    results = []
    for seed, recorder in zip(seeds, recorders, strict=True):
        result = run_peer(args.peers, peer, case.solver, recorder, seed, case.seconds)
        if result is None or not result["points"]:
            return None
        results.append(result)
        progress(peer, seed, result["points"][-1])
    curves = [result["points"] for result in results]
    changed = {"version": results[0]["version"], **results[0]["settings"]}
    return answer_of(changed, curves, seeds, case.seconds), curves


def compare(methods, name):
    """Add to the runs of a peer how many times larger its error is than ours."""
    runs = methods[name]["runs"]
    for run, own in zip(runs, methods["dngd"]["runs"], strict=True):
        run["over_dngd"] = run["error"] / own["error"]
    methods[name]["summary"] = summary(runs)


def run(args):
    case = CASE._replace(seconds=SECONDS)
    case = quick_case(case)._replace(seconds=QUICK_SECONDS) if args.quick else case
    case = case._replace(seconds=args.seconds or case.seconds)
    seeds = seeds_of(args, case.seconds)
    methods, curves, skipped, targets = {}, {}, {}, {}
    methods["dngd"], curves["dngd"], recorders = ours(case, seeds)
    for name in args.only or PEERS:
        reason = missing(args.peers, PEERS[name])
        found = None
        if reason is None:
            found = theirs(args, PEERS[name], case, seeds, recorders)
        if found is None:
            skipped[name] = reason or "it failed"
            continue
        methods[name], curves[name] = found
        compare(methods, name)
        targets[f"target_{name}"] = target(
            methods, name, "over_dngd", "median", at_least=1
        )
    problem = {
        "description": f"{described(case)}; {case.seconds:g} seconds",
        "error_of": list(case.outputs),
        "methods": methods,
        "curves": {
            name: columns(several[middle(methods[name]["runs"])])
            for name, several in curves.items()
        },
        "skipped": skipped,
        **targets,
    }
    notes = [*PINN_NOTES, *NOTES]
    return {"problems": {"kovasznay": problem}, "seeds": seeds, "notes": notes}
