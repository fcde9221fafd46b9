"""What makes arcta fast and knows nothing of it: compiler options, arrays made on the host, sums over windows, random numbers,
small matrices.

In come plain functions and pytrees, out come the same results sooner. What each trick is worth stands in a table that `make bench`
writes (docs/benchmarks.md); a test compares each with the plain way.
"""
