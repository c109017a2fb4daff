"""Voices that are told apart without networks."""

from tests.support.voices import made_up_voices as made_up_voices
