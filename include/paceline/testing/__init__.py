"""What tests, benchmarks and the demo use in place of real trainings and machines: simulated jobs, emulated devices."""
