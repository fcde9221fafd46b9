"""The task API: `fit` and `sweep` train, a `Fit` forecasts, smooths, samples and scores, `load` reads one back.

In come series and a configuration, out comes a `Fit`. No mathematics here: thin layers over the packages before this one.
"""
