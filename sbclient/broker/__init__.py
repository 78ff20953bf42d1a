"""The partitioned broker: state and rules without I/O; time and random numbers come from the caller."""
