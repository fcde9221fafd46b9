"""The parts of a model, each behind an interface, and the `Model` they make.

In come arrays of one example (a window, a point in time, a state), out come arrays of one example; whoever has many maps over them.
A part is abstract or final. A new one is a class that implements the interface in `base`, `encoders`, `decoders`, `sde` or
`likelihoods`; nothing outside asks what kind it is.
"""
