"""Processes that start with the stack imported, for tests that start many and prove nothing about starting.

`python -m tests.forked ADDRESS MODULE WORDS` does what `python -m MODULE WORDS` does, in a child that a server forks.
The server has imported torch, transformers and refrl, which takes each fresh process five seconds of processor time,
and has computed nothing. Streams, folder, environment, words, signals and exit status are those of the command.
"""
