"""No output contains a key, token, connection string or body unless it was requested (I20).

The tests put canaries in place of every secret, send them through every path of messages and commands, and search all
output: log records of every level with their facts and tracebacks, warnings, errors with their causes, reprs of every
reachable object, statuses and events, metrics and spans, the emulator's health, state and events, stdout and stderr
of commands, and the reports of failed assertions.

    canaries.py         the canaries, and the search for them in plain and encoded form
    output_capture.py   captures all output of a test
    reachable.py        the reprs of all reachable objects of the project
"""
