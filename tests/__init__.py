"""Tests of lapace; they mirror the rings of the package.

This file makes them a package: a dependency installs one of the same name, which would hide them.
"""
