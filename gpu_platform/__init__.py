"""gpu-platform: a GPU job lifecycle service.

This package is the library: it knows nothing of Temporal and nothing of the web.
Inside it arrows point one way, ``domain <- topology <- scheduling``; ``hosts`` and
``store`` build on ``domain`` and never import each other.
"""
