"""Data-parallel training on real data: handwritten digits, a small network, numpy only.

Start it as any number of ranks; each takes its share of every batch, and the gradients are
summed over the ranks, so that the result does not depend on how many there are. By itself:

    python train_digits.py

As a gang, `gpu-platform submit -f digits.yaml` sets RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. Rank 0 writes a checkpoint after every epoch, and at SIGTERM, into
GPU_PLATFORM_CHECKPOINT_DIR; a new attempt continues from GPU_PLATFORM_RESUME_FROM.

Exit code: 0 done; 1 the gang broke; 143 stopped by SIGTERM, with a checkpoint.

The data are the 1,797 images of 8 x 8 grey values that scikit-learn carries (Alpaydin and
Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

# Ranks share a host, and threads for matrices this small only get into each other's way.
os.environ.update({f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP")})

import numpy as np
from numpy.typing import NDArray
from ring_allreduce import Gang, PeerLost, Ring

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

PIXELS, HIDDEN, DIGITS = 64, 48, 10
SHAPES = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,)]
PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
HELD_OUT = 360
BATCH = 96
"""Of the whole gang."""
LEARNING_RATE, MOMENTUM = 0.05, 0.9
SEED = 7


@dataclass
class State:
    """All that a new attempt must know to go on as if nothing had happened."""

    parameters: Array
    velocity: Array = field(default_factory=lambda: np.zeros(PARAMETERS))
    epoch: int = 0
    step: int = 0
    """Steps done in this epoch."""
    loss_sum: float = 0.0
    """Over the samples of this epoch's steps."""
    losses: list[float] = field(default_factory=list)
    """Mean loss of every finished epoch."""

    @classmethod
    def fresh(cls) -> State:
        rng = np.random.default_rng(SEED)
        layers = [
            rng.normal(0, np.sqrt(2 / shape[0]), shape) if len(shape) == 2 else np.zeros(shape) for shape in SHAPES
        ]
        return cls(np.concatenate([layer.ravel() for layer in layers]))

    @classmethod
    def load(cls, directory: Path) -> State:
        with np.load(directory / "state.npz") as saved:
            return cls(
                parameters=saved["parameters"],
                velocity=saved["velocity"],
                epoch=int(saved["epoch"]),
                step=int(saved["step"]),
                loss_sum=float(saved["loss_sum"]),
                losses=saved["losses"].tolist(),
            )

    def save(self, directory: Path) -> None:
        """Atomic: at every moment the directory holds one whole checkpoint, or says that it holds none."""
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / "state.npz.tmp"
        with temporary.open("wb") as file:
            np.savez(file, **vars(self))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, directory / "state.npz")
        (directory / "COMPLETE").write_text(f"epoch {self.epoch} step {self.step}\n")

    def share(self, ring: Ring) -> State:
        """Rank 0's state on every rank: their hosts may not see rank 0's checkpoints."""
        numbers = np.array([self.epoch, self.step, self.loss_sum, len(self.losses)], dtype=np.float64)
        known = np.concatenate([numbers, self.parameters, self.velocity])
        if ring.gang.rank != 0:
            known = np.zeros_like(known)
        known = ring.sum(known)
        losses = np.zeros(int(known[3]))
        if ring.gang.rank == 0:
            losses[:] = self.losses
        return State(
            parameters=known[4 : 4 + PARAMETERS],
            velocity=known[4 + PARAMETERS :],
            epoch=int(known[0]),
            step=int(known[1]),
            loss_sum=float(known[2]),
            losses=ring.sum(losses).tolist(),
        )


def main() -> int:
    options = parse_arguments()
    stop_asked = False

    def ask_to_stop(_signal: int, _frame: object) -> None:
        nonlocal stop_asked
        stop_asked = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    gang = Gang.from_environment()
    images, labels = load_digits()
    ring = Ring(gang, options.timeout_s)
    host = os.environ.get("GPU_PLATFORM_HOST", socket.gethostname())
    say(f"rank {gang.rank} of {gang.world_size} on {host}: {len(labels) - HELD_OUT} digits to learn")
    chief = gang.rank == 0
    state = (restore() if chief else State.fresh()).share(ring)
    checkpoints = os.environ.get("GPU_PLATFORM_CHECKPOINT_DIR") if chief else None

    def save() -> None:
        if checkpoints:
            state.save(Path(checkpoints))

    train, held_out = slice(HELD_OUT, None), slice(HELD_OUT)
    accuracy = accuracy_of(state.parameters, images[held_out], labels[held_out])
    step_ms = 0.0
    try:
        while state.epoch < options.epochs:
            order = np.random.default_rng((SEED, state.epoch)).permutation(len(labels) - HELD_OUT)
            steps = -(-len(order) // BATCH)
            while state.step < steps:
                started = time.perf_counter()
                batch = order[state.step * BATCH : (state.step + 1) * BATCH]
                mine = batch[gang.rank :: gang.world_size]
                gradient, loss = gradient_of(state.parameters, images[train][mine], labels[train][mine])
                # The last number lets the whole gang stop after the same step, whoever was told first.
                total = ring.sum(np.concatenate([gradient, [loss, float(stop_asked)]]))
                state.velocity = MOMENTUM * state.velocity - LEARNING_RATE * total[:PARAMETERS] / len(batch)
                state.parameters = state.parameters + state.velocity
                state.loss_sum += float(total[-2])
                state.step += 1
                if total[-1]:
                    save()
                    say(f"SIGTERM: stopped at epoch {state.epoch + 1}, step {state.step}")
                    return 128 + signal.SIGTERM
                time.sleep(max(0.0, options.min_step_ms / 1000 - (time.perf_counter() - started)))
                step_ms = (time.perf_counter() - started) * 1000
            state.losses.append(state.loss_sum / len(order))
            state.epoch, state.step, state.loss_sum = state.epoch + 1, 0, 0.0
            if chief:
                save()
                accuracy = accuracy_of(state.parameters, images[held_out], labels[held_out])
                say(
                    f"epoch {state.epoch:3}/{options.epochs}  loss {state.losses[-1]:.4f}  accuracy {accuracy:.3f}"
                    f"  step {step_ms:.1f} ms"
                )
    except PeerLost:
        if not stop_asked:
            raise
        save()  # the others were quicker to die of the same SIGTERM
        return 128 + signal.SIGTERM
    finally:
        ring.close()
    if chief:
        say(f"accuracy {accuracy:.3f} after {state.epoch} epochs")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--min-step-ms", type=float, default=0.0, help="wait, so that a step lasts at least so long")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="a peer that is silent for longer is lost")
    options = parser.parse_args()
    if options.epochs < 1 or options.min_step_ms < 0 or options.timeout_s <= 0:
        parser.error("--epochs must be at least 1, times must not be negative")
    return options


def load_digits() -> tuple[Array, Labels]:
    """Images (n, 64) in 0..1 and labels (n,), in one fixed random order.

    Reads the file of scikit-learn without importing scikit-learn: it takes a second, and every rank pays it.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("scikit-learn is not installed: it brings the data (pip install scikit-learn)")
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    table = np.random.default_rng(SEED).permutation(table)
    return table[:, :PIXELS] / 16.0, table[:, PIXELS].astype(np.int64)


def restore() -> State:
    directory = os.environ.get("GPU_PLATFORM_RESUME_FROM")
    if not directory:
        return State.fresh()
    try:
        state = State.load(Path(directory))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        sys.exit(f"{directory} holds no checkpoint of this program: {error}")
    say(f"resumed from {directory}: {state.epoch} epochs and {state.step} steps are done")
    return state


def gradient_of(parameters: Array, images: Array, labels: Labels) -> tuple[Array, float]:
    """Gradient (PARAMETERS,) and loss, both summed over the samples."""
    (w1, b1, w2, b2) = layers_of(parameters)
    hidden = np.tanh(images @ w1 + b1)
    logits = hidden @ w2 + b2
    logits -= logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    loss = float((log_sums[:, 0] - logits[rows, labels]).sum())
    slope = np.exp(logits - log_sums)
    slope[rows, labels] -= 1
    back = (slope @ w2.T) * (1 - hidden**2)
    parts = [images.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]
    return np.concatenate([part.ravel() for part in parts]), loss


def accuracy_of(parameters: Array, images: Array, labels: Labels) -> float:
    (w1, b1, w2, b2) = layers_of(parameters)
    return float(((np.tanh(images @ w1 + b1) @ w2 + b2).argmax(axis=1) == labels).mean())


def layers_of(parameters: Array) -> list[Array]:
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(parameters, ends), SHAPES, strict=True)]


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PeerLost as lost:
        sys.exit(f"the gang is broken: {lost}")
