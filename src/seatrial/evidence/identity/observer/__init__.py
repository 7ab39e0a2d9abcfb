"""A folder put first on PYTHONPATH: its `sitecustomize` records where named modules are imported from."""
