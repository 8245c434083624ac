"""Search: what every problem and every solver obey, and how solvers are found and run."""
