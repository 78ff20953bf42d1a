"""Authorization (I19): rights x scope x validity x operation over AMQP and HTTP, compared with the documents.

world.py       a namespace with every kind of entity, and a fingerprint of its content
credentials.py the tokens of clients: signer, rights, scope and validity
oracle.py      the expected results according to the service's documents
messaging.py   the operations over AMQP
managing.py    the operations over HTTP
matrix.py      the cells of the matrix, and their check
"""
