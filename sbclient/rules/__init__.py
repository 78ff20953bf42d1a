"""The pure decisions of the client: who may send where, what is rewritten, when an entity fails over."""
