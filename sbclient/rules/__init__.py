"""The rules of the client as pure functions and state machines: names, limits, rewriting, failover."""
