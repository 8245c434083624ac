"""Programs for TPU v4i: small JAX functions, and what the compiler made of them as data."""
