"""Clusters in the background: as processes, or in containers."""
