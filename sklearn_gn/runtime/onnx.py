"""Conversion to ONNX by skl2onnx, which asks a model for these methods.

They convert what ``to_sklearn`` returns, alone and in a pipeline. Only a conversion
imports skl2onnx.
"""

from operator import attrgetter
from typing import Any

from sklearn.base import is_classifier
from sklearn.utils.metaestimators import available_if

_OPTIONS = {  # of classifiers, with their values
    "zipmap": [True, False, "columns"],
    "nocl": [True, False],
    "output_class_labels": [True, False],
}
_if_exported = available_if(attrgetter("to_sklearn"))


class ConvertedToONNX:
    """An estimator that ``skl2onnx.to_onnx`` converts, if it has ``to_sklearn``."""

    @_if_exported
    def onnx_parser(self) -> Any:
        """Register the class with the options of classifiers; skl2onnx names outputs.

        Returns
        -------
        parser : None
            That of skl2onnx.
        """
        from skl2onnx import update_registered_converter

        cls = type(self)
        update_registered_converter(
            cls,
            f"SklearnGN{cls.__name__}",
            lambda operator: operator.raw_operator.onnx_shape_calculator()(operator),
            lambda scope, operator, container: operator.raw_operator.onnx_converter()(
                scope, operator, container
            ),
            options=_OPTIONS if is_classifier(self) else {},
        )

    @_if_exported
    def onnx_shape_calculator(self) -> Any:
        """Return the function by which skl2onnx learns the types of the outputs.

        Returns
        -------
        set_types : callable
            Takes an operator of skl2onnx.
        """
        from skl2onnx.common.data_types import (
            Int64TensorType,
            StringTensorType,
            guess_tensor_type,
        )

        def set_types(operator):
            given = operator.inputs[0]
            numbers, n = guess_tensor_type(given.type), given.get_first_dimension()
            if not is_classifier(self):
                columns = getattr(self, "n_outputs_", 1)
                operator.outputs[0].type = type(numbers)([n, columns])
                return
            is_number = self.classes_.dtype.kind in "biuf"
            label = Int64TensorType if is_number else StringTensorType
            operator.outputs[0].type = label([n])
            operator.outputs[1].type = type(numbers)([n, len(self.classes_)])

        return set_types

    @_if_exported
    def onnx_converter(self) -> Any:
        """Return the function by which skl2onnx adds the graph of ``to_sklearn()``.

        Returns
        -------
        add : callable
            Takes a scope, an operator and a container of skl2onnx.
        """
        from skl2onnx._parse import parse_sklearn

        def add(scope, operator, container):
            model = self.to_sklearn()
            if is_classifier(self):
                last = model[-1] if hasattr(model, "steps") else model
                scope.add_options(id(last), {"zipmap": False})
            found = parse_sklearn(scope, model, operator.inputs)
            for part, output in zip(found, operator.outputs, strict=False):
                container.add_node("Identity", part.full_name, output.full_name)

        return add
