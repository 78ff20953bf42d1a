"""The transport to a broker in this process."""
