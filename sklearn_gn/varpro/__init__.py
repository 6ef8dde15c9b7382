"""VarProNetRegressor and VarProNetClassifier: networks by variable projection."""
