"""Faults of what a deferred training job needs: the triggerer, the API server, the engine, the database, its DAG."""
