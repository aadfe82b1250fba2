"""What was run, where and with what: a record of each launch, and RO-Crate metadata."""
