"""The README's example: from a series to a forecast with its uncertainty."""

import arcta

series = arcta.datasets.lotka_volterra(
    seed=0
)  # or arcta.Series(times, values): irregular, with gaps (NaN), any channels
train, test = arcta.split(series, at=0.8)  # by time span, never at random
fit = arcta.fit(arcta.LatentSDE(), train, key=0)
forecast = fit.forecast(test.times, num_samples=256, key=1)  # mean, quantiles, samples; to_frame(), plot()
state = fit.smooth(train, train.times)  # the posterior at any times: denoise, fill gaps, super-resolve
fresh = fit.sample(test.times, num_samples=10, key=2)  # new trajectories from the prior
print(fit.score(test))  # rmse, crps, log density, coverage of the forecast
print(forecast.to_frame().iloc[[0, -1]].round(3))
fit.save("run")  # arcta.load("run") forecasts without the data
