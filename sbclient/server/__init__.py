"""The broker over the network: AMQP and HTTP on one port for each namespace."""
