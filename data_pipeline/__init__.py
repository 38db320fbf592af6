"""Text -> documents -> token shards -> batches. Imports nothing else of this project, and no torch."""
