"""A program that survives everything: it goes on from its checkpoint, and saves when the platform asks.

Plain Python; `train_torch.py` is the same with PyTorch. By itself:

    python checkpointed_sum.py --steps 2000

On the platform, asked for a checkpoint every minute, and again before it is stopped:

    gpu-platform submit --checkpoint-every 1m --checkpoints -- python checkpointed_sum.py --steps 200000
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from gpu_platform import job


@dataclass
class State:
    step: int = 0
    total: int = 0

    @classmethod
    def restored(cls) -> State:
        directory = job.resume_dir()
        if directory is None:
            return cls()
        state = cls(**json.loads((directory / "state.json").read_text()))
        print(f"goes on after step {state.step} from {directory}", flush=True)
        return state

    def save(self) -> None:
        with job.save(self.step) as directory:
            (directory / "state.json").write_text(json.dumps(asdict(self)))
        print(f"saved after step {self.step}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Add up numbers, slowly, and never from the beginning again.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--save-to", type=Path, default=None, help="where the result goes; default: printed only")
    options = parser.parse_args()
    stop_asked = False

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stop_asked
        stop_asked = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    state = State.restored()
    while state.step < options.steps:
        state.step += 1
        state.total += state.step
        time.sleep(options.step_ms / 1000)
        if job.should_checkpoint():
            state.save()
        if stop_asked:
            # The platform asked for a checkpoint before SIGTERM, so there is little to lose by now.
            return 128 + signal.SIGTERM
    print(f"the sum of 1 to {state.step} is {state.total}", flush=True)
    if options.save_to is not None:
        options.save_to.write_text(str(state.total))
    return 0


if __name__ == "__main__":
    sys.exit(main())
