"""A folder put first on PYTHONPATH: its `sitecustomize` writes down where named modules are imported from."""
