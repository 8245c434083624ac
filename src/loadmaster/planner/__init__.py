"""The planner: from a program and a machine to a checked plan beside baselines and bound."""
