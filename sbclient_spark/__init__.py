"""Spark DataFrames written to Service Bus through the failover client."""
