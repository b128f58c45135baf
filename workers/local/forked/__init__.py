"""The platform's programs as processes that are forked from one that has imported them.

Processes of one machine so share the memory of what they import, and start at once: a new Python process has 120 to 150
MiB, and spends one to two seconds of CPU on imports. A server process imports the modules once and then forks. Each
program runs in a process of its own, with its own arguments, environment and files, and can be stopped, killed and
frozen like any other. What differs from a new interpreter: ``/proc/PID/environ`` is that of the server, and an import
that a program lacks is not seen.
"""
