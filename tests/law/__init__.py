"""The standing test of one law: no bound, no "optimal" and no judge contradicts `check`.

For every problem, random small instances; on each a local search over *plans* (not over a solver's
decisions), of which `check` and the problem's own scope accept every one that it stands on. See
`search` for what is held, `cases` for the six problems, `instances` for what they are posed on.

    python -m tests.law --instances 2000 --jobs 16 --json out.json
"""
