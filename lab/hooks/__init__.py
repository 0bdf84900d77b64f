"""Lookup routes: is every hook reachable by every path, and does it reach the right driver function?"""
