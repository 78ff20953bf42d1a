"""Pairing of two namespaces: failover state, backlog queues, diversion of sends, pings, session order."""
