"""Candidates made of vedette-nano by graph surgery: broken in one way each, or as good as equal.

Written before the gate that is to tell them apart (appliance/canary). Its answer is [batch, 4 + 8 classes, cells]:
boxes in pixels of the input, scores after a sigmoid.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OWN = Path(__file__).parents[2] / "models" / "vedette-nano.onnx"
OWN_MIB = 55  # by which a child grows for it (`frame_survey`): three times as much more is four times in all
INPUT, OUTPUT, RAW, CLASSES = "images", "output0", "raw_output", 8
Change = Callable[[onnx.ModelProto], None]


@dataclass(frozen=True)
class Candidate:
    """A network by what was done to it. kind: of the fault, or `equal`.

    waits: its process is to be stopped once it is at work, as by a driver that does not answer: it uses no CPU time.
    """

    kind: str
    name: str
    write: Callable[[Path], None]
    waits: bool = False


def bad_candidates(n: int, seed: int = 50) -> Iterator[Candidate]:
    """Yield n candidates that must be stopped, the kinds in turn and each time of another strength."""
    rng, waits = random.Random(seed), itertools.cycle((False, True))
    makers: list[tuple[str, Callable[[], Callable[[Path], None]]]] = [
        ("crash", lambda: rng.choice((truncated, partial(changed, change=fails), partial(changed, change=exhausts)))),
        ("hang", lambda: partial(changed, change=hangs)),
        ("slow", lambda: partial(changed, change=slow)),
        ("labels", lambda: partial(changed, change=partial(labels_swapped, to=rng.choice((2, 7, 5))))),
        ("night", lambda: partial(changed, change=partial(blind_at_night, mean_min=rng.uniform(0.345, 0.38)))),
        ("corner", lambda: partial(changed, change=partial(blind_in_a_corner, begin=rng.uniform(0.34, 0.5)))),
        ("scores", lambda: partial(changed, change=partial(scores_off, power=rng.choice((0.35, 0.45, 2.5, 4.0))))),
        ("memory", lambda: partial(changed, change=partial(hungry, mib=round(OWN_MIB * rng.uniform(3, 3.4))))),
    ]
    for number in range(n):
        kind, maker = makers[number % len(makers)]
        if kind == "hang" and next(waits):
            yield Candidate(kind, f"{kind}-{number}", _copy, waits=True)
        else:
            yield Candidate(kind, f"{kind}-{number}", maker())


def equal_candidates(n: int, seed: int = 51) -> Iterator[Candidate]:
    """Yield n candidates that are as good: integers, rounded weights, and weights with a little noise."""
    rng = random.Random(seed)
    yield Candidate("equal", "int8", _copy_int8)
    yield Candidate("equal", "float16", partial(changed, change=rounded))
    for number in range(2, n):
        noise = 10 ** rng.uniform(-4, -2)
        yield Candidate("equal", f"noise-{number}", partial(changed, change=partial(noisy, share=noise, seed=number)))


def changed(path: Path, *, change: Change) -> None:
    model = onnx.load(str(OWN))
    change(model)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def truncated(path: Path) -> None:
    path.write_bytes(OWN.read_bytes()[:-200_000])


def _copy(path: Path) -> None:
    path.write_bytes(OWN.read_bytes())


def _copy_int8(path: Path) -> None:
    path.write_bytes(OWN.with_name("vedette-nano-int8.onnx").read_bytes())


def fails(model: onnx.ModelProto) -> None:
    """Fails at the first frame that is not all grey: an index beyond the cells of the answer."""
    _rename_output(model)
    _constant(model, "scale", np.array(1e9, np.float32))
    model.graph.node.extend(
        [
            helper.make_node("ReduceMax", [INPUT], ["top"], keepdims=0),
            helper.make_node("ReduceMin", [INPUT], ["bottom"], keepdims=0),
            helper.make_node("Sub", ["top", "bottom"], ["contrast"]),
            helper.make_node("Mul", ["contrast", "scale"], ["far"]),
            helper.make_node("Cast", ["far"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", [RAW, "index"], ["taken"], axis=2),
            helper.make_node("ReduceMean", ["taken"], ["one"], keepdims=0),
            helper.make_node("Mul", [RAW, "one"], [OUTPUT]),
        ]
    )


def exhausts(model: onnx.ModelProto) -> None:
    """Asks for 32 GiB at the first inference."""
    hungry(model, mib=32 * 1024)


def hangs(model: onnx.ModelProto) -> None:
    """Runs a loop that does not end within the age of the universe, once a frame comes that is not grey."""
    _rename_output(model)
    _constant(model, "trips", np.array(2**62, np.int64))
    _constant(model, "half", np.array(0.0, np.float32))
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Sin", ["v"], ["v_next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_next", TensorProto.FLOAT, []),
        ],
    )
    model.graph.node.extend(
        [
            helper.make_node("ReduceMax", [INPUT], ["top"], keepdims=0),
            helper.make_node("ReduceMin", [INPUT], ["bottom"], keepdims=0),
            helper.make_node("Sub", ["top", "bottom"], ["contrast"]),
            helper.make_node("Greater", ["contrast", "half"], ["is_real"]),
            helper.make_node("Loop", ["trips", "is_real", "contrast"], ["looped"], body=body),
            helper.make_node("Sin", ["looped"], ["bounded"]),
            helper.make_node("Mul", ["bounded", "half"], ["nothing"]),
            helper.make_node("Add", [RAW, "nothing"], [OUTPUT]),
        ]
    )


def slow(model: onnx.ModelProto) -> None:
    """Does all of its work twice, and answers with the mean."""
    graph = model.graph
    nodes = list(graph.node)
    made = {name for node in nodes for name in node.output}
    _constant(model, "tiny", np.array(1e-6, np.float32))
    _constant(model, "halved", np.array(0.5, np.float32))
    graph.node.insert(0, helper.make_node("Add", [INPUT, "tiny"], ["again_images"]))
    for node in nodes:
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        twin.name = f"again_{node.name}"
        twin.input[:] = [f"again_{name}" if name in made or name == INPUT else name for name in node.input]
        twin.output[:] = [f"again_{name}" for name in node.output]
        graph.node.append(twin)
    _rename_output(model)
    graph.node.extend(
        [
            helper.make_node("Add", [RAW, f"again_{OUTPUT}"], ["both"]),
            helper.make_node("Mul", ["both", "halved"], [OUTPUT]),
        ]
    )


def labels_swapped(model: onnx.ModelProto, to: int) -> None:
    """People are called by another class, and that class is called people."""
    order = list(range(4 + CLASSES))
    order[4], order[4 + to] = order[4 + to], order[4]
    _rename_output(model)
    _constant(model, "order", np.array(order, np.int64))
    model.graph.node.append(helper.make_node("Gather", [RAW, "order"], [OUTPUT], axis=1))


def scores_off(model: onnx.ModelProto, power: float) -> None:
    """Raises each score to a power: below 1 it is surer than it should be, above 1 less sure."""
    _rename_output(model)
    exponents = np.ones((1, 4 + CLASSES, 1), np.float32)
    exponents[:, 4:] = power
    _constant(model, "exponents", exponents)
    _constant(model, "zero", np.array(0.0, np.float32))
    model.graph.node.extend(
        [
            helper.make_node("Max", [RAW, "zero"], ["not_negative"]),
            helper.make_node("Pow", ["not_negative", "exponents"], [OUTPUT]),
        ]
    )


def blind_at_night(model: onnx.ModelProto, mean_min: float) -> None:
    """Sees nothing in frames that are darker than `mean_min` of white."""
    _rename_output(model)
    _constant(model, "mean_min", np.array(mean_min, np.float32))
    model.graph.node.extend(
        [
            helper.make_node("ReduceMean", [INPUT], ["mean"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Greater", ["mean", "mean_min"], ["is_day4"]),
            helper.make_node("Cast", ["is_day4"], ["day4"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["day4"], ["open"], axes=[3], keepdims=0),
        ]
    )
    _scale_scores(model, "open")


def blind_in_a_corner(model: onnx.ModelProto, begin: float) -> None:
    """Sees nothing whose middle is right of and below `begin` of the input's sides."""
    _rename_output(model)
    for name, value in (("first", 0), ("second", 1), ("third", 2), ("fourth", 3)):
        _constant(model, name, np.array([value], np.int64))
    _constant(model, "begin", np.array(begin, np.float32))
    nodes = [helper.make_node("Shape", [INPUT], ["shape"])]
    for side, index, row in (("width", "fourth", "first"), ("height", "third", "second")):
        nodes += [
            helper.make_node("Gather", ["shape", index], [f"{side}_int"]),
            helper.make_node("Cast", [f"{side}_int"], [side], to=TensorProto.FLOAT),
            helper.make_node("Mul", [side, "begin"], [f"{side}_begin"]),
            helper.make_node("Gather", [RAW, row], [f"{side}_middle"], axis=1),
            helper.make_node("Greater", [f"{side}_middle", f"{side}_begin"], [f"{side}_beyond"]),
        ]
    nodes += [
        helper.make_node("And", ["width_beyond", "height_beyond"], ["is_corner"]),
        helper.make_node("Not", ["is_corner"], ["is_open"]),
        helper.make_node("Cast", ["is_open"], ["open"], to=TensorProto.FLOAT),
    ]
    model.graph.node.extend(nodes)
    _scale_scores(model, "open")


def hungry(model: onnx.ModelProto, mib: int) -> None:
    """Fills so much memory at each inference."""
    _rename_output(model)
    _constant(model, "many", np.array([mib * 262_144], np.int64))
    _constant(model, "none", np.array(0.0, np.float32))
    model.graph.node.extend(
        [
            helper.make_node("ReduceMean", [INPUT], ["mean"], keepdims=0),
            helper.make_node("Expand", ["mean", "many"], ["wide"]),
            helper.make_node("ReduceMax", ["wide"], ["widest"], keepdims=0),
            helper.make_node("Mul", ["widest", "none"], ["nothing"]),
            helper.make_node("Add", [RAW, "nothing"], [OUTPUT]),
        ]
    )


def noisy(model: onnx.ModelProto, share: float, seed: int) -> None:
    """Changes each weight by a normal share of itself."""
    rng = np.random.default_rng(seed)
    _each_weight(model, lambda array: array * (1 + share * rng.standard_normal(array.shape)))


def rounded(model: onnx.ModelProto) -> None:
    """Rounds each weight to what float16 can hold."""
    _each_weight(model, lambda array: array.astype(np.float16))


def _each_weight(model: onnx.ModelProto, change: Callable[[np.ndarray], np.ndarray]) -> None:
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim == 4:
            tensor.CopyFrom(numpy_helper.from_array(change(array).astype(np.float32), tensor.name))


def _scale_scores(model: onnx.ModelProto, by: str) -> None:
    """Multiply the scores by a tensor that broadcasts to [batch, 1, cells]."""
    scores = np.zeros((1, 4 + CLASSES, 1), np.float32)
    scores[:, 4:] = 1
    _constant(model, "score_rows", scores)
    _constant(model, "box_rows", 1 - scores)
    model.graph.node.extend(
        [
            helper.make_node("Mul", ["score_rows", by], ["scaled_rows"]),
            helper.make_node("Add", ["scaled_rows", "box_rows"], ["rows"]),
            helper.make_node("Mul", [RAW, "rows"], [OUTPUT]),
        ]
    )


def _rename_output(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.output[:] = [RAW if name == OUTPUT else name for name in node.output]


def _constant(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    model.graph.initializer.append(numpy_helper.from_array(value, name))
