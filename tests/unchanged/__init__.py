"""What this package gave before it was rearranged, and a test that it gives the same now.

`python -m tests.unchanged --record [PATTERN]` writes `recorded/`; `--check [PATTERN]` compares. Entries are
named by words that users see (workloads, solvers, commands), as 'solvers/mapping/density/layers/0', so that
a step that removes a solver says so with `--remove 'solvers/mapping/density/*'`.
"""
