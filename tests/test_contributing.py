"""The files that CONTRIBUTING.md names exist."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def test_the_files_that_it_names_exist():
    package = Path(__file__).parents[1] / "sklearn_gn"
    for name in re.findall(r"`([a-z_]+/[a-z_]+\.py)`", TEXT):
        assert (package / name).exists(), name
