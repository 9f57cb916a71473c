"""Delivery: a worker process per (run, sink) that follows the journal from its cursor and feeds a tracker.

Used by the bus process and by ``accelbus sync``.
"""
