"""Linear latent SDEs, solved exactly: trends, seasons, cycles and noise of single channels, what classical forecasting knows.

In: series. Out: a `Structure`, the competing models of each channel with their evidence, and the exact posterior of any of them at
any times. No training loop: a linear SDE is a Gaussian process, and a few hundred observations are one small matrix.
"""
