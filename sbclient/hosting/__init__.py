"""The broker in running time: receivers wait for messages, deadlines pass."""
