"""Training on several machines: a parameter server, and workers that join and leave.

``__main__`` runs a ``_server`` in a separate container; ``worker`` runs the ``track`` loop of its workers. Both
communicate through ``peer`` after the ``_handshake``, within the ``_limits``, and share the constants in ``plan``.
``_training`` is the server's state, ``shards`` assigns the samples to workers, ``_agreement`` compares what the workers
train, and ``_vector`` is the trained state as a flat vector. Several processes can hold ranges of that vector:
``_spread`` manages these processes in the server, ``state_shard`` runs one of them, and a worker's ``_connection`` to
the server includes its ``_ranges``, the connections to the other processes.
"""
