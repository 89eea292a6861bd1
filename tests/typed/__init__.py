"""Programs that only mypy reads (strict, `make lint`): they hold the types of the public API. An `ignore` marks an error
that mypy must report; one that it does not report is itself an error."""
