"""Using a trained model: forecasts, smoothing, samples, what they are scored by, and the classical forecasts to beat.

In come a model, the layout of the data it was trained on and series in the user's units; out come `Prediction`s (or `Bands`) in the
user's units, and scores.
"""
