"""Configuration of the documentation; `make doc` builds it, without a network."""

import sys
from pathlib import Path

from sklearn_gn import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "sklearn_gn"
author = "The sklearn_gn developers"
project_copyright = author
version = release = __version__

extensions = [
    "benchmark_results",
    "changelog_page",
    "internal_links",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",  # source links that need no host
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # brings MathJax: formulas need no network
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext"]
default_role = "literal"
smartquotes = False  # parameter values are copied from the pages

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say it with shapes and defaults
# The class template lists the members; numpydoc need not do it again.
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "subsection_order": [
        "../examples/stories",
        "../examples/notebooks",
        "../examples/methods",
    ],
    "within_subsection_order": "FileNameSortKey",
    "thumbnail_size": (480, 320),
    "filename_pattern": "plot_",
    "ignore_repr_types": r"matplotlib|Display",
    "reset_modules": ("matplotlib", "gallery_style.use"),
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("sklearn_gn",),
    "show_memory": False,
}

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["gallery.css"]
html_title = f"sklearn_gn {__version__.partition('+')[0]}"  # without the commit
html_show_sourcelink = False
# Pages without a section of their own need no navigation next to them.
html_sidebars = {
    page: []
    for page in ("index", "getting_started", "choose", "coming_from", "glossary")
} | {"changelog": []}
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}


def skip_members_of_sklearn(app, what, name, obj, skip, options):
    """Leave what scikit-learn's base classes bring to scikit-learn's documentation."""
    if (getattr(obj, "__module__", None) or "").startswith("sklearn."):
        return True
    return None  # as autodoc decides


def setup(app):
    """Connect the hook above."""
    app.connect("autodoc-skip-member", skip_members_of_sklearn)
