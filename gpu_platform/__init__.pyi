from gpu_platform.executor import Executor as Executor

__all__ = ["Executor"]
