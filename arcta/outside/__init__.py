"""What faces people: the report, configuration files, the demo, studies, the command line. Thin over the task API."""
