"""The service, and everything that speaks like it, over our own AMQP engine."""
