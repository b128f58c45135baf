"""PyTorch under the platform: resume, save atomically, and save when the platform asks, on one or many ranks.

    gpu-platform submit --gpus 2 --rank-per gpu --checkpoint-every 30m --checkpoints -- python train_torch.py

Ranks hear a request a step apart, so rank 0 decides and tells the others: all of them stop at the same step.
Without PyTorch it says so and exits with 0.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gpu_platform import job

STEPS = 2_000
FEATURES = 32


def main() -> int:
    try:
        import torch  # pyright: ignore[reportMissingImports]  # not among the platform's dependencies
    except ImportError:
        print("PyTorch is not installed (pip install torch): nothing to train", flush=True)
        return 0
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if world_size > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(7)
    model = torch.nn.Linear(FEATURES, 1).to(device)
    trained = torch.nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    target = torch.arange(FEATURES, dtype=torch.float32, device=device) / FEATURES
    step, loss = restore(torch, model, optimizer, device), torch.zeros(())
    while step < STEPS:
        inputs = torch.randn(64, FEATURES, device=device)
        loss = ((trained(inputs).squeeze(1) - inputs @ target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if decided_by_rank_0(torch, rank == 0 and job.should_checkpoint(), device, world_size):
            save(torch, model, optimizer, step, rank, world_size)
    if rank == 0:
        save(torch, model, optimizer, step, rank, 1)
        print(f"loss {loss.item():.5f} after {step} steps", flush=True)
    if world_size > 1:
        torch.distributed.destroy_process_group()
    return 0


def restore(torch: Any, model: Any, optimizer: Any, device: Any) -> int:
    """The steps that are done. All ranks see rank 0's checkpoint where the checkpoint root is shared."""
    directory = job.resume_dir()
    if directory is None:
        return 0
    saved = torch.load(directory / "state.pt", map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    print(f"goes on after step {saved['step']} from {directory}", flush=True)
    return int(saved["step"])


def save(torch: Any, model: Any, optimizer: Any, step: int, rank: int, world_size: int) -> None:
    if rank == 0:
        with job.save(step) as directory:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, directory / "state.pt")
    if world_size > 1:
        torch.distributed.barrier()


def decided_by_rank_0(torch: Any, wanted: bool, device: Any, world_size: int) -> bool:
    if world_size == 1:
        return wanted
    flag = torch.tensor([int(wanted)], device=device)
    torch.distributed.broadcast(flag, 0)
    return bool(flag.item())


if __name__ == "__main__":
    sys.exit(main())
