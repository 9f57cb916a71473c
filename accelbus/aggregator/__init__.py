"""The bus process: takes events from the producers of its node, makes them durable, starts the delivery to trackers.

::

    __main__.py    start: lock, bind, serve
    socket.py      ZeroMQ on anyio
    server.py      messages in, checked, handed to the run that they concern

    run.py         one run: all of the following, put together
    peers.py       whom it can speak to, and flow control
    intake.py      events: into the journal, then acked
    ledger.py      the journal: append, sync, what may be acked when
    settings.py    which settings rule, where ranks differ
    attendance.py  producers that say hello and goodbye; fencing
    detector.py    producers that say nothing: found, dead, salvaged
    lifetime.py    the run closed and opened again; when to leave
    deliverer.py   its trackers: started, fed, stopped
    verdict.py     whether it may start
    reporter.py    notices, sink states, status.json
    roster.py      its producers: who is there, alive, gone; the run's status
    history.py     the same, recalled from the journal
    remains.py     spools: found, watched, read
    faults.py      what peers send that cannot be used

    afterwards.py  for who comes after the bus process: read the run, add to it
    closing.py     close a run that nobody serves
    rescue.py      bring in the spools of runs that nobody serves
"""
