"""The evidence lower bound, without solving a differential equation.

In come a model, windows and a key; out come the terms of a window's bound in nats (`elbo`), and the number that training minimises
(`objective`), an unbiased estimate of the whole data's bound from a few windows.
"""
