"""How one namespace is reached: the port, and one adapter for each kind of namespace."""
