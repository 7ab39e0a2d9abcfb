"""Loads every law when it is imported, and keeps all that is imported by then out of garbage collections.

A server that forks processes which run relations imports it last. Each process would otherwise load the laws again, and
its first garbage collection would copy the memory of everything that is imported.
"""

from __future__ import annotations

import gc

from seatrial.relations.registry import all_relations

all_relations()
gc.collect()
gc.freeze()
