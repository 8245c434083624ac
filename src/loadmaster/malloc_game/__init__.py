"""`MallocGame`: for each use of a tensor, in program order: Copy, NoCopy or Drop."""
