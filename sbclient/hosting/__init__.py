"""The broker on an event loop: receivers wait for messages, and timers fire."""
