"""`--affected`: run the tests that a change can affect, and say why the others were not selected.

| module | subject |
|---|---|
| `watch`, `stats`, `child` | what a Python process uses of the project: modules, data files, folders, variables |
| `startup/` | the `sitecustomize` that starts these in child processes and Ray workers |
| `observation` | everything that is watched in one process of the session, calls of Ray included |
| `windows` | attributes a use to the test or fixture that runs, or to the module that is being imported |
| `runs`, `calls` | which functions ran, and in which scope: a test, a fixture, an import |
| `syntax`, `keepers` | the functions of a file, its skeleton, its imports; the functions that keep a result |
| `sources` | a Python file without its comments and layout, part by part |
| `graph` | transitive imports |
| `items` | the parts of files that a test consists of |
| `fingerprints` | the current content of anything that a test can depend on |
| `store` | what a session observed, and the map on disk |
| `decide` | which tests a change affects, and why |
| `learn` | turns the observations of a session into records of its tests |
| `plugin` | pytest's hooks |
"""
