"""Examples run; stories and notebooks are plain scripts, of one form."""

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("stories/*.py"), *EXAMPLES.glob("notebooks/*.py")])
pytestmark = pytest.mark.skipif(not SCRIPTS, reason="needs the source tree")


@pytest.fixture(params=SCRIPTS, ids=lambda path: path.stem)
def tree(request):
    return ast.parse(request.param.read_text(encoding="utf-8"))


def test_it_begins_with_title_and_summary(tree):
    title, underline, blank, summary = ast.get_docstring(tree).splitlines()[:4]
    assert underline == "=" * len(title)
    assert not blank
    assert summary


def test_it_is_a_plain_script(tree):
    """It reads no command line, silences no warning and formats no table by hand."""
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        node.module.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert not imported & {"sys", "argparse", "warnings", "logging"}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "__name__" not in names
    assert not any(isinstance(node, ast.FormattedValue) for node in ast.walk(tree))


def test_the_quick_start_needs_what_the_extra_plot_has():
    root = EXAMPLES.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["plot"]]
    known = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in needed}
    known = (known - {"scikit_learn"}) | {"sklearn", "sklearn_gn"}
    code = (EXAMPLES / "plot_quickstart.py").read_text(encoding="utf-8")
    imported = re.findall(r"^(?:import|from) (\w+)", code, re.M)
    assert imported
    assert set(imported) <= known


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem
)
def test_it_runs(path, tmp_path):
    settings = os.environ | {"MPLBACKEND": "Agg"}
    command = [sys.executable, path]
    run = subprocess.run(
        command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    if missing := re.search(r"ModuleNotFoundError: (.*)", run.stderr):
        pytest.skip(missing[1])
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_the_rates_of_the_epidemic_are_those_of_least_squares(monkeypatch, tmp_path):
    """The counts also go with an epidemic that never happens: no fit may end there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = runpy.run_path(str(EXAMPLES / "stories" / "plot_epidemic.py"))
    found = names["solver"].coefficients_
    deviations = np.sqrt(np.diag(names["covariance"]))
    for value, best, deviation in zip(
        found.values(), names["reference"].x, deviations, strict=True
    ):
        assert abs(value - best) < deviation
