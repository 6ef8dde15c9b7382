"""Links from the HTML representation of estimators and solvers to the reference."""

# Placeholder until the documentation has its place; RELEASING.md says what to fill in.
DOCUMENTATION = "https://example.org/sklearn_gn/doc"


class ReferenceLinkMixin:
    """Tell the HTML representation of scikit-learn where the page of a class is.

    Classes that users derive outside of this package have no page, and get no link.
    """

    _doc_link_module = "sklearn_gn"
    _doc_link_template = DOCUMENTATION + "/generated/{module}.{name}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        cls = type(self)
        of_solver = cls.__module__.startswith("sklearn_gn.solvers.")
        module = "sklearn_gn.solvers" if of_solver else "sklearn_gn"
        return {"module": module, "name": cls.__name__}
