"""The platform's own programs as processes that are forked from one that has imported them.

A new Python process spends one to two seconds of CPU on imports, and a test run starts hundreds of processes. Here a
server process imports the modules once and then forks: each program runs in a process of its own, with its own
arguments, environment and files, and can be stopped, killed and frozen like any other. What differs from a new
interpreter: ``/proc/PID/cmdline`` and ``/proc/PID/environ`` are those of the server, and an import that a program
lacks is not seen. Tests of these things start a new interpreter.
"""
