"""From files, tables and arrays to windows of fixed shape.

In comes what the user has, in the user's units: files, tables, arrays, generators of data with a known truth. Out come
`Series` with checked guarantees, the `Scaling` to the model's units, and `Window`s: padded arrays with masks, cut from the
series, in batches.
"""
