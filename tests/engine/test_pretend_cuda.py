"""The engine on a pretend GPU: the same texts, nothing forbidden, few launches."""

import pytest
import torch

from slimwhisper.engine.engine import Engine
from tests.support.pretend_cuda import pretend_cuda
from tests.support.windows import (
    SEARCHES,
    VOCABULARY,
    assert_same,
    decode,
    random_model,
    run,
    windows,
)


@pytest.mark.parametrize(("search", "temperatures"), SEARCHES)
def test_same(search, temperatures) -> None:
    requests = [*windows(4, temperatures=temperatures)]
    expected = decode(random_model(), requests, 3, search, 4)
    with pretend_cuda(2) as gpu:
        model = random_model(torch.device("cuda", 1))
        engine = Engine(model, VOCABULARY, 3, search, 4)
        done = run(engine, dict(enumerate(requests)))
    assert_same([done[i][0] for i in range(4)], expected)
    print(engine.first.graphs.failure, gpu.counts)
