"""CITATION.cff follows the schema of its format and cites the paper of each method."""

import datetime
from pathlib import Path

import pytest

from tests._discovery import all_estimators

yaml = pytest.importorskip("yaml")
PATH = Path(__file__).parents[1] / "CITATION.cff"
pytestmark = pytest.mark.skipif(not PATH.exists(), reason="needs the source tree")

# Of the schema, the keys that the file may need.
PERSON = {"family-names", "given-names", "name-particle", "name-suffix", "orcid"}
ENTITY = {"name", "email", "website"}
TOP = {
    *("abstract", "authors", "cff-version", "commit", "date-released", "doi"),
    *("identifiers", "keywords", "license", "message", "preferred-citation"),
    *("references", "repository-code", "title", "type", "url", "version"),
}
REFERENCE = {
    *("authors", "doi", "issue", "journal", "notes", "pages", "start", "end"),
    *("publisher", "title", "type", "url", "volume", "year", "abbreviation"),
}


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load(PATH.read_text())


def assert_author(author):
    of_person, of_entity = set(author) <= PERSON, set(author) <= ENTITY
    assert (of_person and "family-names" in author) or (of_entity and "name" in author)
    assert all(isinstance(value, str) and value for value in author.values())


def test_required_and_allowed_keys(citation):
    assert {"authors", "cff-version", "message", "title"} <= set(citation) <= TOP
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert citation["license"] == "BSD-3-Clause"
    for author in citation["authors"]:
        assert_author(author)
    keywords = citation["keywords"]
    assert len(keywords) == len(set(keywords))
    assert all(isinstance(word, str) for word in keywords)
    if "version" in citation:  # filled in by a release, with its date
        assert isinstance(citation["version"], str)
        assert isinstance(citation["date-released"], datetime.date)


def test_references(citation):
    for reference in citation["references"]:
        assert {"authors", "title", "type"} <= set(reference) <= REFERENCE
        assert reference["type"] == "article"
        assert isinstance(reference["title"], str)
        for author in reference["authors"]:
            assert_author(author)
        for number in ("year", "volume"):
            assert isinstance(reference.get(number, 0), int)
        assert reference.get("url", "https://").startswith("https://")


def test_every_method_with_a_paper_is_cited(citation):
    cited = {
        name
        for reference in citation["references"]
        for name in reference["notes"].split(", ")
    }
    # Textbook methods, cited in the guide, and a search around a method.
    own = {"SegmentedRegressor", "FGNSoftmaxHeadCV"}
    assert cited | own == {name for name, _ in all_estimators()}
