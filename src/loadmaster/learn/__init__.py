"""Learn: what the agents share: policy files, options, trees of arrays."""
