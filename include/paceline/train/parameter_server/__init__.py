"""Training on several machines: a parameter server, and workers that join and leave.

``__main__`` runs a ``_server`` in a separate container; ``worker`` runs the ``track`` loop of its workers. Both
communicate through ``peer`` after the ``handshake``, within the ``_limits``, and share the constants in ``plan``.
``_training`` is the server's view of the job, ``shards`` assigns the samples to workers, ``_agreement`` compares what
the workers train, ``_state`` is the trained state, and ``_vector`` converts a worker's model to it, a flat vector.
Several processes can hold ranges of that vector: ``_holder`` is one of them as the server sees it, ``state_shard`` runs
it, and a worker's ``_connection`` to the server includes its ``_ranges``, the connections to the other processes.
"""
