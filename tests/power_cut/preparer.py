"""Prepares the :class:`LocalCluster` that is pickled on its standard input, in a process whose syncs can be seen."""

from __future__ import annotations

import pickle
import sys

from tests.support.state_guard import GuardedStore
from workers.local import cluster

if __name__ == "__main__":
    cluster.Store = GuardedStore  # as in the test's own process
    pickle.load(sys.stdin.buffer).prepare()
