"""Models trained through differential-equation solvers, behind the same `fit`, `forecast` and `score`, to compare with."""
