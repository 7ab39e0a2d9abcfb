"""`--affected`: run the tests that a change can affect, and say why the others were not selected.

| module | subject |
|---|---|
| `watch`, `stats` | what a Python process uses of the project: modules, data files, folders, environment variables |
| `startup/` | the `sitecustomize` that starts these in child processes and Ray workers |
| `observation` | all that is watched in one process of the session |
| `windows` | whose use it is: the test or fixture that runs, the module that is being imported |
| `runs` | which functions ran, and in which scope: a test, a fixture, an import |
| `calls`, `probes` | how functions report that they run: `sys.monitoring`, or on Python 3.11 a probe in each |
| `functions`, `keepers` | the functions of a file, what is left without their bodies, which of them keep results |
| `sources` | a Python file without its comments and layout; its imports; its parts one by one |
| `graph` | transitive imports |
| `items` | which parts of which files make up a test |
| `options` | the command line's options |
| `ray_use` | tests that call Ray, and clusters whose workers cannot be watched |
| `fingerprints` | the present content of anything a test can depend on |
| `packages` | installed distributions behind imported modules |
| `folders` | the session's folder of logs, and those that killed sessions left |
| `store` | the map on disk |
| `decide` | which tests a change affects, and why |
| `seen`, `learn` | from what was seen in a session to the records of its tests |
| `plugin` | pytest's hooks |
"""
