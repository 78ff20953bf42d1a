"""AMQP 1.0 for the broker's clients, on the engine of `sbclient.amqp`."""
