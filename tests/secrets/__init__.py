"""No key, token, connection string or body is told where nobody asked for it (I20).

Canaries go in wherever a secret can, through every way that a message or a command can take, and all that is told is
searched: log records of every level with their facts and tracebacks, warnings, errors with their causes, reprs of every
object that is alive, statuses and events, metrics and spans, the emulator's health, state and events, stdout and stderr
of commands, and what pytest says of a failed assertion.

    canaries.py    the canaries, and how they are found also where they are encoded
    ear.py         hears all that is told in a run
    alive.py       the reprs of all objects of ours that can be reached from somewhere
"""
