"""The transport to Service Bus and compatible brokers over our own AMQP engine."""
