"""Slow, obvious twins of what the native core does fast: tests compare the two.

Each is written from its document alone, in plain Python, and shares no code with the core or with what it is
compared with (tests/test_architecture.py holds that for the simulator):

- `simulate/`: docs/simulation.md, section by section; `simulate_reference` gives a whole `Timeline`.
- `game`, `rules`, `judge`: the malloc game, what it reckons with, and how long a placement takes.
- `graph`: the fusion pass and the meaning of a decision vector.
- `mapping`: lives, rectifier and time of whole-life mappings.
- `offload`, `placed`: copies of an offload plan, with and without addresses.
"""
