"""The order of the ops, for the least peak of memory."""
