"""Helpers for developers."""
