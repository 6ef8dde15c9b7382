"""Figures of the house: how large the package is, and how far a reader has to walk.

``python tools/house.py`` prints every figure beside its goal and its baseline, which is
``tools/house.json``; with ``--check`` the exit status is 1 if a figure has risen above
the baseline while it is above its goal. ``--write`` makes the current figures the
baseline, after they have fallen. ``--hops`` also fits small problems with default
settings and counts the functions and modules of the package that such a fit passes
before it factorises its first matrix (half a minute).
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASELINE = Path(__file__).with_suffix(".json")

GOALS = {
    "lines": (45_000, "lines of the package"),
    "code": (26_000, "lines of code, without docstrings, comments and blank lines"),
    "functions": (2_200, "functions and methods"),
    "tiny_functions": (550, "functions of at most three lines of code"),
    "single_use": (110, "module functions of at most six lines that are used once"),
    "thresholds": (350, "numbers at module level"),
    "docstrings": (0.45, "lines of docstrings over lines of code"),
    "lapack_files": (15, "modules that factorise matrices themselves"),
    "small_modules": (8, "modules of fewer than 60 lines, except __init__"),
    "state_fields": (12, "fields of the largest NamedTuple"),
    "internal_tests": (0.15, "share of the tests that use what is not public"),
    "lines_shallow_relu": (3_300, "lines of the room"),
    "lines_segmented": (3_600, "lines of the room"),
    "lines_varpro": (3_700, "lines of the room"),
    "lines_softmax_head": (3_300, "lines of the room"),
    "lines_networks": (600, "lines of the room"),
    "lines_pde": (4_800, "lines of the room"),
    "lines_pinn": (4_900, "lines of the room, without enrichment"),
    "lines_plotting": (2_800, "lines of the room"),
    "lines_datasets": (1_300, "lines of the room"),
    "lines_core": (0, "lines of the room, which is to be divided among others"),
}
HOPS = {  # goals of functions and modules that a default fit passes
    "shallow_relu": (30, 9),
    "varpro": (30, 9),
    "classifier": (30, 9),
    "segmented": (30, 9),
    "head": (30, 9),
    "pinn": (70, 18),
}
for _fit, (_functions, _modules) in HOPS.items():
    GOALS[f"hops_{_fit}"] = (_functions, "functions before the first factorisation")
    GOALS[f"hop_modules_{_fit}"] = (_modules, "modules before the first factorisation")

PUBLIC = {
    "sklearn_gn",
    *(
        f"sklearn_gn.{name}"
        for name in (
            "pde",
            "pde.problems",
            "networks",
            "solvers",
            "callbacks",
            "plotting",
            "datasets",
            "quadrature",
            "enrichment",
        )
    ),
}
FACTORISATION = re.compile(
    r"\b(cho_factor|cholesky|eigh|eigvalsh|svd|lstsq|qr|lapack|solve_triangular"
    r"|lu_factor|potrf|linalg\.solve)\b"
)


def docstring_lines(node):
    """Lines of the docstring of a module, class or function."""
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1


def code_lines(function):
    """Lines from the first statement to the last, without the docstring."""
    lines = function.end_lineno - function.body[0].lineno + 1
    return lines - docstring_lines(function)


def comment_lines(text):
    """Lines that hold a comment only."""
    return sum(
        token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def thresholds(tree):
    """Numbers, and sums and products of such, that are assigned at module level.

    Types that are joined by ``|`` are none.
    """

    def is_number(value):
        try:
            return type(ast.literal_eval(value)) in (int, float)
        except (ValueError, TypeError):
            is_sum = isinstance(value, ast.BinOp)
            return is_sum and not isinstance(value.op, ast.BitOr)

    values = [s.value for s in tree.body if isinstance(s, ast.Assign)]
    parts = (v.elts if isinstance(v, ast.Tuple) else [v] for v in values)
    return sum(is_number(part) for group in parts for part in group)


def of_the_package(folder):
    """Figures of the source of the package in a folder."""
    paths = sorted(folder.rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    figures, used, docstrings = Counter(), Counter(), 0
    for path, tree in trees.items():
        text, nodes = texts[path], list(ast.walk(tree))
        n_lines, rooms = text.count("\n"), path.relative_to(folder).parts
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        n_docs = sum(docstring_lines(n) for n in nodes if isinstance(n, documented))
        blank = sum(not line.strip() for line in text.splitlines())
        docstrings += n_docs
        figures["lines"] += n_lines
        if f"lines_{rooms[0]}" in GOALS and "enrichment" not in rooms:
            figures[f"lines_{rooms[0]}"] += n_lines
        figures["code"] += n_lines - n_docs - comment_lines(text) - blank
        figures["thresholds"] += thresholds(tree)
        figures["small_modules"] += n_lines < 60 and path.name != "__init__.py"
        without_docstrings = re.sub(r'""".*?"""', "", text, flags=re.S)
        figures["lapack_files"] += bool(FACTORISATION.search(without_docstrings))
        for node in nodes:
            if isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
            elif isinstance(node, ast.FunctionDef):
                figures["functions"] += 1
                figures["tiny_functions"] += code_lines(node) <= 3
            elif isinstance(node, ast.ClassDef):
                if any(getattr(base, "id", "") == "NamedTuple" for base in node.bases):
                    fields = sum(isinstance(s, ast.AnnAssign) for s in node.body)
                    figures["state_fields"] = max(figures["state_fields"], fields)
    figures["single_use"] = sum(
        isinstance(s, ast.FunctionDef) and code_lines(s) <= 6 and used[s.name] == 1
        for tree in trees.values()
        for s in tree.body
    )
    figures["docstrings"] = round(docstrings / figures["code"], 3)
    return figures


def internal_tests(folder):
    """Share of the test functions that import or touch what is not public."""
    n_tests = n_internal = 0
    for path in folder.rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text)
        private = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("sklearn_gn")
            and not (node.module in PUBLIC and public_names(node))
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                source = ast.get_source_segment(text, node) or ""
                touches = re.search(r"\w\._[a-z]", source)
                n_tests += 1
                n_internal += bool(names & private) or bool(touches)
    return round(n_internal / n_tests, 3)


def public_names(node):
    """Whether what is imported from the package itself is public."""
    folders = {"core", "linalg", "optim", "bayes", "data", "runtime", "pinn", "varpro"}
    return node.module != "sklearn_gn" or not folders & {a.name for a in node.names}


def hops():
    """Functions and modules of a default fit before its first factorisation."""
    figures = {}
    for fit in HOPS:
        command = [sys.executable, str(ROOT / "tools" / "hops.py"), fit]
        answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if answer.returncode:
            raise SystemExit(f"the fit {fit} failed:\n{answer.stderr[-2000:]}")
        functions, modules = map(int, answer.stdout.split())
        figures |= {f"hops_{fit}": functions, f"hop_modules_{fit}": modules}
    return figures


def main(argv=None):
    """Print the figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a figure rose")
    parser.add_argument("--write", action="store_true", help="make a new baseline")
    parser.add_argument("--hops", action="store_true", help="also count hops of fits")
    args = parser.parse_args(argv)
    figures = dict(of_the_package(ROOT / "sklearn_gn"))
    figures["internal_tests"] = internal_tests(ROOT / "tests")
    if args.hops:
        figures |= hops()
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    risen = []
    for name, (goal, text) in GOALS.items():
        if name.startswith("hop") and not args.hops:
            continue
        value, before = figures.get(name, 0), baseline.get(name)  # 0: no such room
        over = value > goal
        print(
            f"{'over' if over else 'ok':5}{name:27}{value:>10}  goal {goal:<7}"
            f"{'' if before is None else f' baseline {before:<8}'} {text}"
        )
        if over and before is not None and value > before:
            risen.append(f"{name} rose from {before} to {value} (goal {goal})")
    if args.write:
        BASELINE.write_text(json.dumps({**baseline, **figures}, indent=1) + "\n")
    elif risen:
        print("\n".join(["", *risen]))
    return int(args.check and bool(risen))


if __name__ == "__main__":
    sys.exit(main())
