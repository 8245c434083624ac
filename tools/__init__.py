"""Scripts for those who work on Loadmaster."""
