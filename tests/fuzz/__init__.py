"""Scripts that throw hostile input at the parts that face a network."""
