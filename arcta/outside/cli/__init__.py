"""The command line: a thin layer over the task API. In come words, out come files, tables and exit codes."""
