"""`--affected`: run the tests that a change can affect, and say why the others were left out.

| module | subject |
|---|---|
| `watch` | what a Python process uses of the project: modules, data files, folders, environment variables |
| `startup/` | the `sitecustomize` that starts `watch` in child processes and Ray workers |
| `windows` | whose use it is: the test or fixture that runs, the module that is being imported |
| `calls` | which files' functions a test executed (Python 3.12 and later) |
| `sources` | a Python file without its comments and layout; its imports; its tests and fixtures one by one |
| `graph` | transitive imports |
| `items` | which parts of which files make up a test |
| `fingerprints` | the present content of anything a test can depend on |
| `packages` | installed distributions behind imported modules |
| `store` | the map on disk |
| `decide` | which tests a change affects, and why |
| `learn` | from what was seen in a session to the records of its tests |
| `plugin` | pytest's hooks |
"""
