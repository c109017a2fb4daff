"""Voices that are told apart without networks."""

from tests.support.voices import made_up_voices

__all__ = ["made_up_voices"]
