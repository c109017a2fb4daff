"""A form whose loss is known."""

from tests.support.toy_form import first as first
