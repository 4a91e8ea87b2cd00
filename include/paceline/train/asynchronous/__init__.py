"""Training on several machines: a parameter server, and workers that join and leave.

``__main__`` runs a ``server`` in a separate container; ``worker`` runs the ``track`` loop of its workers. Both
communicate through ``peer`` after the ``handshake`` and share the constants in ``plan``. ``training`` is the server's
state, ``shards`` assigns the samples to workers, and ``vector`` is the trained state as a row of numbers. Several
processes can hold ranges of that row: ``spread`` manages them in the server, ``state_shard`` is one of them, and
``ranges`` connects a worker to all of them.
"""
