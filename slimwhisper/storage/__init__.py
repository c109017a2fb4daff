"""Inputs and outputs elsewhere: object stores by fsspec, manifests, archives, tables."""
