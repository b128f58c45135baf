"""Picks the training with the smallest error: one directory for each of them."""

import json
import os

results = []
for directory in os.environ["GPU_PLATFORM_INPUT_TRAIN"].split(":"):
    with open(os.path.join(directory, "output.json")) as file:
        results.append(json.load(file))
best = min(results, key=lambda one: one["error"])
print(f"best of {len(results)}: {best}")
with open(os.environ["GPU_PLATFORM_OUTPUT"], "w") as file:
    json.dump(best, file)
