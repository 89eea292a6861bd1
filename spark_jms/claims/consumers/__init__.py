"""One consumer of a destination, on one server or on several.

Not here: the records that it holds (records), how its batches are made (batches), what fails (failures)."""
