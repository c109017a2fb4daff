"""How hypothesis is run here: the same examples every time, and no files kept."""

from hypothesis import HealthCheck, settings

SLOW = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large)


def examples(count: int) -> settings:
    """For `@examples(50)` above `@given(...)`."""
    return settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=SLOW)
