"""The documentation: the reference is complete, and result files have their page."""

import importlib
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.solvers import Solver
from tests._discovery import PUBLIC_MODULES, public_objects

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "doc").exists(), reason="needs the source tree"
)


def names_of_the_reference():
    """Names that the page lists, by module."""
    listed = {}
    for block in (
        (ROOT / "doc" / "api.rst").read_text().split(".. currentmodule:: ")[1:]
    ):
        module, _, text = block.partition("\n")
        listed.setdefault(module.strip(), []).extend(
            re.findall(r"^   (\w+)$", text, re.M)
        )
    return listed


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_the_reference_lists_all_public_names(module):
    public = set(importlib.import_module(module).__all__)
    listed = names_of_the_reference()[module]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name in public if not name.startswith("__")}


WITH_A_PAGE = {
    name: public
    for name, public in public_objects().items()
    if isinstance(public, type) and issubclass(public, BaseEstimator)
}


def test_html_representations_link_the_pages_of_the_reference():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    documentation = project["urls"]["Documentation"]
    assert {"sklearn_gn.PINNSolver", "sklearn_gn.solvers.DNGD"} < set(WITH_A_PAGE)
    for name, cls in WITH_A_PAGE.items():
        page = f"{documentation}/generated/{name}.html"
        assert f'href="{page}"' in estimator_html_repr(cls()), name


def test_classes_of_users_have_no_page():
    class OfUser(Solver):
        pass

    class Derived(FGNSoftmaxHead):
        pass

    assert OfUser()._get_doc_link() == Derived()._get_doc_link() == ""


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda p: p.stem
)
def test_examples_are_plain_scripts(path):
    text = path.read_text()
    assert text.startswith('"""\n')
    for forbidden in ("import warnings", "filterwarnings", "sys.argv", "if __name__"):
        assert forbidden not in text


def extension(name):
    """A module of the documentation's extensions."""
    path = ROOT / "doc" / "_ext" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_changelog_as_a_page():
    module = extension("changelog_page")
    text = module.as_restructured_text(module.CHANGELOG.read_text())
    found = publish_doctree(text, settings_overrides={"halt_level": 2})
    titles = [title.astext() for title in found.findall(nodes.title)]
    assert titles[0] == "Changelog"
    assert len(list(found.findall(nodes.literal))) > 10
    assert not re.search(r"^#|\]\(", found.astext(), re.M)
    link = next(found.findall(nodes.reference))
    assert link["refuri"].startswith("https://keepachangelog.com")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    module = extension("benchmark_results")
    module.draw_curves = lambda *arguments: None  # pictures are looked at, not tested
    folder = tmp_path_factory.mktemp("results")
    module.write_pages(folder)
    return module, {path.stem: path.read_text() for path in folder.glob("*.rst")}


def test_every_result_file_has_a_section_with_its_command(pages):
    module, texts = pages
    everything = "\n".join(texts.values())
    for path in module.RESULTS.glob("*.json"):
        if path.stem not in module.NOT_SHOWN:
            assert f"python -m benchmarks {path.stem}\n" in everything


def test_tables_show_the_figures_of_the_files(pages):
    module, texts = pages
    path = module.RESULTS / "pinn_peers.json"
    methods = json.loads(path.read_text())["problems"]["kovasznay"]["methods"]
    medians = [m["summary"]["error"]["median"] for m in methods.values()]
    cells = "\n".join(f"     - {value:.3g}" for value in medians)
    assert f"   * - error\n{cells}\n" in texts["pinn"]


def test_targets_are_shown_as_met_and_as_missed(pages):
    module, texts = pages
    results = [json.loads(path.read_text()) for path in module.RESULTS.glob("*.json")]
    aims = [
        problem[key]["passed"]
        for result in results
        for problem in result.get("problems", {}).values()
        for key in problem
        if key.startswith("target")
    ]
    everything = "\n".join(texts.values())
    assert everything.count(": met (") == sum(aims)
    assert everything.count(": **missed** (") == len(aims) - sum(aims)
