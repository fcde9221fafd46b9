"""One file for each kind of source: text and tables, arrays, frames. In comes a path or a table, out come series and notes."""
