"""One module for each headline table; each prints it and writes the same as JSON."""
