"""What if: the running scheduler's own core, driven through a trace by a virtual clock.

::

    trace + cluster + policy ──▶ engine.simulate ──▶ Run ──▶ report.report_on ──▶ Report ──▶ page.html_page

``files`` is the only module that reads the disk. Nothing here knows the time of day; the same input
gives the same report, except for the decision times, which need a clock that the caller passes in.
"""
