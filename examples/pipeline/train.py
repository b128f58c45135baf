"""Fits a line by gradient descent with one learning rate. Too high a rate diverges, and says so."""

import json
import os
import sys

rate = float(sys.argv[1])
with open(os.path.join(os.environ["GPU_PLATFORM_INPUT_PREPROCESS"], "points.json")) as file:
    points = json.load(file)
slope = offset = 0.0
for _ in range(50):
    errors = [(slope * x + offset - y, x) for x, y in points]
    slope -= rate * sum(error * x for error, x in errors) / len(points)
    offset -= rate * sum(error for error, _ in errors) / len(points)
error = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
with open(os.environ["GPU_PLATFORM_OUTPUT"], "w") as file:
    json.dump({"rate": rate, "error": error, "slope": slope}, file)
