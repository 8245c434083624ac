"""Slow, obvious twins of what the native core does fast."""
