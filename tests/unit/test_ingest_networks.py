"""A network that cannot be loaded: whether the ingest process must start anew, or the network is refused."""

from __future__ import annotations

import queue

import pytest

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import ModelError, ModelForbidden, unreadable_model
from appliance.detect.detector import ObjectDetector
from appliance.ingest.camera_detectors import Networks, NetworkTable
from appliance.types import NetworksAnswer, NetworksCommand


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (unreadable_model("a.onnx: the model file", PermissionError(13, "Permission denied")), "restart"),
        (unreadable_model("a.onnx: the model file", FileNotFoundError(2, "No such file or directory")), "refused"),
        (ModelError("a.onnx: the model file cannot be read: Permission denied"), "refused"),  # words decide nothing
    ],
)
def test_only_a_file_that_this_process_may_not_read_asks_for_another_process(error: ModelError, outcome: str) -> None:
    def load(_: DetectorConfig) -> ObjectDetector:
        raise error

    answers: queue.Queue[NetworksAnswer] = queue.Queue()
    networks = Networks(NetworkTable({}, {}), load, answers.put)
    networks.submit(NetworksCommand(id="1", networks={"": {"model": "a.onnx"}}, cameras={}))
    answer = answers.get(timeout=60)
    assert (answer.outcome, answer.reason) == (outcome, str(error))
    assert not networks.take_ready()


def test_the_error_names_file_and_reason() -> None:
    error = unreadable_model("a.onnx: the model file", PermissionError(13, "Permission denied"))
    assert isinstance(error, ModelForbidden)
    assert str(error) == "a.onnx: the model file cannot be read: Permission denied"
