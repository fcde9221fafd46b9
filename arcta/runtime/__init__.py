"""What makes arcta fast and knows nothing of it: compiler options, sums over windows, arrays made on the host.

In come plain functions and pytrees, out come the same results sooner. What each trick is worth stands in a table that `make bench`
writes (docs/benchmarks.md); a test compares each with the plain way.
"""
