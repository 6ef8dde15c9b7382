"""CHANGELOG.md, in Markdown, as a page of the documentation."""

import re
from pathlib import Path

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def as_restructured_text(text):
    """Translate headings, links and code; lists are the same in both languages.

    Parameters
    ----------
    text : str
        Markdown.

    Returns
    -------
    str
    """
    text = re.sub(r"`([^`]+)`", r"``\1``", text)
    text = re.sub(r"\[([^]]+)\]\((https?:[^)]+)\)", r"`\1 <\2>`__", text)
    text = re.sub(r"^## \[([^]]+)\]", r"## \1", text, flags=re.M)
    for marks, line in {"#": "=", "##": "-", "###": "."}.items():
        text = re.sub(
            rf"^{marks} (.+)$",
            lambda found, line=line: f"{found[1]}\n{line * len(found[1])}",
            text,
            flags=re.M,
        )
    return text


def put_changelog(app, docname, source):
    """Give the page of that name its text."""
    if docname == "changelog":
        source[0] = as_restructured_text(CHANGELOG.read_text())


def setup(app):
    """Connect the translation to the reading of pages."""
    app.connect("source-read", put_changelog)
    return {"parallel_read_safe": True}
