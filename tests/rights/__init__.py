"""Who may do what (I19): rights x scope x validity x operation on both fronts of the broker, against the documents.

world.py       a namespace with something of everything, and a print of all that it holds
credentials.py what a client shows: whose key, which rights, for what, and whether it is any good
oracle.py      what the service's documents say must happen; knows nothing of the broker's code
messaging.py   what is done over AMQP
managing.py    what is done over HTTP
matrix.py      which cells there are, and how one is judged
"""
