"""Processes that start with the stack imported, for tests that start many and prove nothing about starting.

`FOLDER/python -m MODULE WORDS` does what Python does, for a MODULE of ours, in a child that a server forks. The server
(`server.py`) has imported torch, transformers and refrl, which takes each fresh process five seconds of processor time,
and has computed nothing. Files, folder, environment, words, signals and exit status are those of the command. The fork
servers of multiprocessing, which import the same, start so too. Whatever else that python is asked for, and a module of
ours that is imported from another place, Python itself does.

A second server has imported pytest and nothing else, for tests that run a session of it in a project of their own. A
third one has imported the stack and forks the processes of pytest-xdist that run our tests. What a server forks shares
the seed of hashes; a test and what it starts have different ones, as what Python itself starts has.

One server of each kind serves a whole run of pytest, from the first process on that asks it (`activation.py`).
"""
