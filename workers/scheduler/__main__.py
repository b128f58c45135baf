"""``python -m workers.scheduler``: a scheduler, which leads or stands by."""

from workers.process import run_process
from workers.scheduler.main import main

if __name__ == "__main__":
    run_process(main())
