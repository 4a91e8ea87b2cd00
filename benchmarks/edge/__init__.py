"""The emulated fleet of the fleet benchmarks, with its neighbour application and its training scripts."""
