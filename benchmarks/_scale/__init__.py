"""The problems of ``python -m benchmarks scale``, a module for each kind."""
