"""Words and rules of the product: pure data, no I/O, no clock."""
