"""Problems: decision spaces over a program and a machine."""
