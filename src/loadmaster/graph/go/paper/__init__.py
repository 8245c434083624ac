"""GO as published: one graph network that decides fusion, placement and schedule, trained by PPO."""
