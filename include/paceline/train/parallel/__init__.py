"""Training on several devices of one machine, with one process per device."""
