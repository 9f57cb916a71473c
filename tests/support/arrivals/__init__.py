"""What each tracker's own reader finds, for the table of what arrives: one module per tracker."""
