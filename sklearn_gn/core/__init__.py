"""What the methods share: fit loop, solver protocol, linear algebra, backend."""
