"""Learn: what the agents share: settings, sessions, checkpoints, replay, policy files, NumPy and JAX alike."""
