"""``python -m workers.node``: the process of one GPU host."""

from gpu_platform.node.isolation.privileges import hide_memory
from workers.node.main import main_with_restarts
from workers.process import run_process

if __name__ == "__main__":
    hide_memory()
    run_process(main_with_restarts())
