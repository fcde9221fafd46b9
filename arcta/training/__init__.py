"""From a model and windows to a trained model: settings, one compiled loop, progress, checkpoints, several devices or models.

In come a loss, a state and data (`prepare` makes all three from a configuration and series); out comes an `Outcome`. The loop is
generic in the loss and knows nothing of SDEs.
"""
