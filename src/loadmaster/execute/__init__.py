"""Plans on real devices: calibration, and the executor that runs a model as a plan says."""
