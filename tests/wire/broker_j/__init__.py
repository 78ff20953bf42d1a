"""Apache Qpid Broker-J, a foreign broker that speaks AMQP 1.0 with transactions."""
