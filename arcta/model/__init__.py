"""From a configuration and the data to a model that is ready to train.

In come `LatentSDE` (plain keywords) and series; out come what the data says (`Reading`), what using the model needs to know of it
(`DataLayout`), and the `Model` of the parts, built and started from a linear reading of the data.
"""
