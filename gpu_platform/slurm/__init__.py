"""What Slurm's users write: directives, times, hostlists, arrays, dependencies; read and translated into our options.

Standard library only: the command line and the runner of scripts on hosts import it.
"""
