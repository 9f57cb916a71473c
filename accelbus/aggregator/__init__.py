"""The bus process: takes events from the producers of its node, makes them durable, starts the delivery to trackers.

::

    __main__.py    start: lock, bind, serve
    socket.py      ZeroMQ on anyio
    server.py      frames and control messages in, acks out
    ledger.py      the journal: append, sync, what may be acked when
    roster.py      producers: who is there, alive, gone; the run's status
    remains.py     spools: found, watched, salvaged
"""
