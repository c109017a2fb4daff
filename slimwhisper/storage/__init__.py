"""Inputs and outputs other than plain files: stores (by fsspec), manifests, archives, tables."""
