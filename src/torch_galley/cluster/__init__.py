"""Captured -> Clustered: XlaClusters and the native remainder."""
