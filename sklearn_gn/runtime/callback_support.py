"""scikit-learn's callbacks, which are experimental in 1.9: only this module uses them.

A fit is the root task ("fit"); every iteration is a subtask of it.
"""

from sklearn.callback import CallbackSupportMixin

__all__ = ["CallbackSupportMixin", "FitTasks"]


class FitTasks:
    """The tasks of one fit, with the estimator's callbacks and ``extra`` ones attached.

    ``max_iter`` is the most iterations that the fit may begin, None if there is no
    limit; ``data``, a dict of X, y and metadata, is handed to callbacks that ask for
    it.
    """

    def __init__(self, estimator, extra, *, max_iter, data):
        self._estimator = estimator
        self._data = data
        had_callbacks = hasattr(estimator, "_skl_callbacks")
        own = getattr(estimator, "_skl_callbacks", [])
        # The context takes its callbacks from this attribute when it is made.
        estimator._skl_callbacks = [*own, *extra]
        try:
            self._root = estimator._init_callback_context(max_subtasks=max_iter)
        finally:
            if had_callbacks:
                estimator._skl_callbacks = own
            else:
                del estimator._skl_callbacks

    def begin(self):
        """Begin the fit."""
        self._root.call_on_fit_task_begin(estimator=self._estimator, **self._data)

    def end(self, attributes):
        """End the fit; ``attributes`` makes the fitted attributes when called."""
        self._end(self._root, attributes)

    def begin_iteration(self):
        """Begin an iteration and return its task."""
        task = self._root.subcontext(task_name="iteration")
        return task.call_on_fit_task_begin(estimator=self._estimator, **self._data)

    def end_iteration(self, task, attributes):
        """End an iteration; True if a callback asks to stop."""
        return self._end(task, attributes)

    def _end(self, task, attributes):
        return task.call_on_fit_task_end(
            estimator=self._estimator,
            **self._data,
            reconstruction_attributes=attributes,
        )
