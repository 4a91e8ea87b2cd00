"""What the benchmarks of fleets have in common: an emulated fleet, its application, and what it trains."""
