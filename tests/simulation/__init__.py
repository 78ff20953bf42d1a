"""Deterministic simulation: the real client and the real broker under faults drawn from a seed, and what must hold."""
