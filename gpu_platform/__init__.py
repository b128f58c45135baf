"""gpu-platform: a GPU job lifecycle service.

This package is the library: it imports neither Temporal nor a web framework. Inside it, ``scheduling`` builds on
``topology``, and ``topology`` on ``domain``. ``hosts`` and ``store`` build on ``domain`` and never import each other.
"""
