"""Stored chunks and shards: layout, checks, manifests, atomic outputs, remote stores."""
