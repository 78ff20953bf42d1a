"""The client that an application opens, with its senders, receivers and transactions."""
