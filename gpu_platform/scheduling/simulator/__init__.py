"""Simulates a policy: the core of the running scheduler decides on a trace of jobs in virtual time.

::

    trace + cluster + policy ──▶ engine.simulate ──▶ SimulationRun
    SimulationRun ──▶ report.report_on ──▶ SimulationReport ──▶ page.html_page

Only ``files`` reads the disk. Nothing here knows the time of day. The same input gives the same report, except for
the duration of decisions, for which the caller gives a clock.
"""
