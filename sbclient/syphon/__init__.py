"""The syphon: drains the backlog queues into the entities that the messages were sent to."""
