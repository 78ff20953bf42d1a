"""Planted bugs: small changes of the real code, each of which the simulation must find."""
