"""The partitioned broker: pure state and rules, driven by `now` and a random generator handed in."""
