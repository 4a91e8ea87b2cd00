"""What would happen, without waiting: one training under its controller here, a cluster of many jobs in ``cluster``."""
