from gpu_platform.domain.job import Interrupt, JobInput

__all__ = ["Interrupt", "JobInput"]
