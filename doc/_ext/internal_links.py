"""Every link of the built site that stays inside it leads somewhere.

A page or an anchor that does not exist is a warning, and so an error of ``make doc``.
"""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

logger = logging.getLogger(__name__)


class _Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def broken_links(folder):
    """Yield the links of a site that lead nowhere, with their pages.

    Parameters
    ----------
    folder : path-like
        Root of the built site.
    """
    root = Path(folder).resolve()
    pages = {
        path: _Page(path.read_text())
        for path in root.rglob("*.html")
        if "_static" not in path.parts  # templates of the theme
    }
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve()
            target = path if not parts.path else target
            anchor = unquote(parts.fragment)
            if not target.is_relative_to(root) or not target.exists():
                yield path.relative_to(root), link
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield path.relative_to(root), link


def check(app, exception):
    """Warn of the links that lead nowhere."""
    if exception is None and app.builder.format == "html":
        for page, link in broken_links(app.outdir):
            logger.warning("%s: the link %s leads nowhere", page, link)


def setup(app):
    """Connect the check to the end of the build."""
    app.connect("build-finished", check, priority=900)  # after all that copies files
    return {"parallel_read_safe": True}
