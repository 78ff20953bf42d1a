"""Paired namespaces for Azure Service Bus, and the partitioned broker to test them against."""
