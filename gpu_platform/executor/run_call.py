"""Runs one call of an :class:`Executor` in its job, and writes what came of it. ``python run_call.py DIRECTORY``.

A copy of this file lies in the directory of the submission, so the Python of the job needs cloudpickle and nothing of
the platform. A result is written once: the first attempt that has one wins, and a later attempt does not run again.
"""

import importlib
import importlib.util
import os
import pickle
import sys
import tempfile
import traceback


def main(directory):
    """Run the call whose number the environment says. Returns the exit code: 1 after an exception."""
    index, attempt = os.environ.get("GPU_PLATFORM_ARRAY_INDEX", "0"), os.environ.get("GPU_PLATFORM_ATTEMPT", "1")
    result = os.path.join(directory, "results", index)
    if os.path.exists(result):
        return 0
    try:
        with open(os.path.join(directory, "function"), "rb") as file:
            version = file.readline().decode().strip()
            own = "{}.{}".format(*sys.version_info)
            if version != own:
                raise RuntimeError(
                    f"the function was sent by Python {version}, and the job's Python is {own} ({sys.executable}): "
                    "name one of the same version with Executor(python=…)"
                )
            if importlib.util.find_spec("cloudpickle") is None:
                raise RuntimeError(
                    f"cloudpickle is not installed for {sys.executable}, the Python of the job: install it there, or "
                    "name another one with Executor(python=…)"
                )
            function = pickle.load(file)
        with open(os.path.join(directory, "arguments", index), "rb") as file:
            arguments, named = pickle.load(file)
        value = _dumps(function(*arguments, **named))
    except BaseException as error:
        told = traceback.format_exc()
        print(told, end="", file=sys.stderr, flush=True)
        _write(os.path.join(directory, "errors", f"{index}.{attempt}"), pickle.dumps((told, _sendable(error))))
        return 1
    _write(result, value)
    return 0


def _dumps(value):
    if importlib.util.find_spec("cloudpickle") is None:
        return pickle.dumps(value)
    return importlib.import_module("cloudpickle").dumps(value)


def _sendable(error):
    """The exception as bytes, or None if it cannot be rebuilt elsewhere."""
    error.__traceback__ = None
    error.__cause__ = error.__context__ = None
    try:
        content = _dumps(error)
        pickle.loads(content)
    except Exception:
        return None
    return content


def _write(path, content):
    """Write a file that is there as a whole or not at all. A file that is there already stays."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".")
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
