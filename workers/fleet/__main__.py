"""``python -m workers.fleet 'rack*=dgx-h100:1000'``: the process of many simulated hosts."""

import sys

from workers.fleet.main import main
from workers.process import run_process

if __name__ == "__main__":
    run_process(main(sys.argv[1:]))
