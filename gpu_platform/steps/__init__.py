"""Runs a batch script on the hosts of its job, and the steps that ``srun`` starts in it (ADR 69).

Rank 0 runs the script, once. The other ranks wait for its steps. Standard library only: it runs inside the job, as the
job's account, and shares nothing with the node worker.

::

    script --> srun --TCP--> manager (rank 0) --TCP--> member (each other rank) --> tasks
                 <-- output and exit codes --          <--
"""
