"""``python -m workers.node``: the process of one GPU host."""

from workers.node.main import main_with_restarts
from workers.process import run_process

if __name__ == "__main__":
    run_process(main_with_restarts())
