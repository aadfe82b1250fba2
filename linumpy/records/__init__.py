"""Records of launches: what ran, where and with what; RO-Crate metadata."""
