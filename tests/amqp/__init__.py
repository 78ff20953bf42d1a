"""The AMQP engine, tested without sockets."""
