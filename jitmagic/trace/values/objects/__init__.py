"""Python objects: constants, functions, classes, instances, namespaces."""
