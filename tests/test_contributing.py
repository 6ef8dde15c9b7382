"""The files that the descriptions of the source name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    not (ROOT / "CONTRIBUTING.md").exists(), reason="needs the source tree"
)
@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "doc/user_guide/how_it_works.rst"])
def test_the_files_that_it_names_exist(page):
    text = (ROOT / page).read_text()
    names = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", text)
    assert names
    for name in names:
        assert (ROOT / "sklearn_gn" / name).exists(), name
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link
