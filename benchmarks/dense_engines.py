"""Other engines: oneDNN on the same convolutions, ONNX Runtime and OpenVINO on a similar ResNet.

All of them do less: oneDNN runs the convolutions without neurons and sums; the ONNX ResNet has
ReLUs in place of neurons.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lbq.graph import LoweredNetwork
from lbq.graph.graph import Node
from lbq.graph.operators import Synapse
from lbq_paper.int8_ann import onnx_runtime, openvino

Run = Callable[[], object]
STAGES = (128, 256, 512)


def products_of(net: LoweredNetwork, images: Tensor) -> list[tuple[Synapse, Tensor]]:
    """Return every convolution after the stem with its input levels, ``[T * B, ...]``."""
    found: list[tuple[Synapse, Tensor]] = []

    def compute(node: Node, *values: Tensor) -> Tensor:
        synapse = node.operator
        if isinstance(synapse, Synapse) and synapse.has_time and not synapse.is_linear:
            found.append((synapse, values[0].flatten(0, 1).contiguous()))
        return node.compute(*values)

    with torch.no_grad():
        net(images, compute)
    return found


def onednn_runs(products: list[tuple[Synapse, Tensor]]) -> dict[str, Run]:
    """Return all convolutions in float32, and in int8 with float and with byte outputs."""
    calls: dict[str, list[Run]] = {"fp32": [], "int8 to floats": [], "int8 to bytes": []}
    for node, levels in products:
        calls["fp32"].append(_float_call(node, levels))
        for name, dtype in (("int8 to floats", torch.float32), ("int8 to bytes", torch.uint8)):
            calls[name].append(_int8_call(node, levels, dtype))

    def run_all(some: list[Run]) -> None:
        for call in some:
            call()

    return {f"oneDNN {name}": (lambda some=some: run_all(some)) for name, some in calls.items()}


def _float_call(node: Synapse, levels: Tensor) -> Run:
    x = levels.float().to(memory_format=torch.channels_last)
    weight = node.weight.float().to(memory_format=torch.channels_last)
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        weight.to_mkldnn(), node.padding, node.stride, node.dilation, node.groups, list(x.shape)
    )
    return lambda: torch.ops.mkldnn._convolution_pointwise(
        x, packed, None, node.padding, node.stride, node.dilation, node.groups, "none", [], ""
    )


def _int8_call(node: Synapse, levels: Tensor, dtype: torch.dtype) -> Run:
    x = levels.to(memory_format=torch.channels_last)
    scale = torch.full((len(node.weight),), 0.01)
    zero = torch.zeros(len(node.weight), dtype=torch.long)
    where = (node.stride, node.padding, node.dilation, node.groups)
    packed = torch.ops.onednn.qconv_prepack(node.weight, scale, 1.0, 0, *where, list(x.shape))
    return lambda: torch.ops.onednn.qconv2d_pointwise(
        x, 1.0, 0, packed, scale, zero, None, *where, 1.0, 0, dtype, "none", [], ""
    )


def products_agree(products: list[tuple[Synapse, Tensor]]) -> bool:
    """Return whether oneDNN's int8 convolutions with float outputs equal those of the network."""
    for node, levels in products:
        got = _int8_call(node, levels, torch.float32)() * 100  # type: ignore[operator]
        expected = F.conv2d(levels.double(), node.weight.double(), None, node.stride, node.padding)
        if not torch.equal(got.double().round(), expected):
            return False
    return True


def int8_resnet(width: float) -> bytes:
    """Return ResNet-20 with ReLUs as an ONNX model of quantised convolutions, for any batch."""
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 -- an extra

    dice = np.random.default_rng(0)
    nodes: list[object] = []
    constants = [
        numpy_helper.from_array(np.array(value, dtype=kind), name)
        for name, value, kind in (
            ("scale", 0.05, np.float32),
            ("byte", 0, np.uint8),
        )
    ]

    def quantised(x: str, name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [x, "scale", "byte"], [f"{name}_q"]))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "byte"], [f"{name}_d"])
        )
        return f"{name}_d"

    def conv(x: str, name: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        weight = dice.integers(-127, 128, (outputs, inputs, kernel, kernel)).astype(np.int8)
        arrays = {
            "w": weight,
            "s": np.full(outputs, 0.001, np.float32),
            "z": np.zeros(outputs, np.int8),
            "b": np.zeros(outputs, np.float32),
        }
        constants.extend(numpy_helper.from_array(a, f"{name}_{k}") for k, a in arrays.items())
        names = [f"{name}_w", f"{name}_s", f"{name}_z"]
        nodes.append(helper.make_node("DequantizeLinear", names, [f"{name}_f"], axis=0))
        nodes.append(
            helper.make_node(
                "Conv",
                [x, f"{name}_f", f"{name}_b"],
                [name],
                kernel_shape=[kernel] * 2,
                strides=[stride] * 2,
                pads=[kernel // 2] * 4,
            )
        )
        return name

    def relu(x: str, name: str) -> str:
        nodes.append(helper.make_node("Relu", [x], [name]))
        return quantised(name, name)

    channels = int(STAGES[0] * width)
    x = relu(conv(quantised("images", "images"), "stem", 3, channels, 3, 1), "stem_relu")
    for name, inputs, outputs, stride in _blocks(width):
        inner = relu(conv(x, f"{name}_1", inputs, outputs, 3, stride), f"{name}_relu1")
        inner = quantised(conv(inner, f"{name}_2", outputs, outputs, 3, 1), f"{name}_2")
        side = x
        if inputs != outputs:
            side = quantised(conv(x, f"{name}_s", inputs, outputs, 1, stride), f"{name}_s")
        nodes.append(helper.make_node("Add", [inner, side], [f"{name}_sum"]))
        x = relu(f"{name}_sum", f"{name}_relu2")
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["answer"]))
    graph = helper.make_graph(
        nodes,
        "resnet20",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["B", 3, 32, 32])],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def _blocks(width: float) -> Iterator[tuple[str, int, int, int]]:
    inputs = int(STAGES[0] * width)
    for stage, full in enumerate(STAGES):
        outputs = int(full * width)
        for block in range(3):
            yield f"s{stage}b{block}", inputs, outputs, 2 if outputs != inputs else 1
            inputs = outputs


def onnx_runs(model: bytes, batch: int, threads: int, side: int = 32) -> dict[str, Run]:
    """Return an ONNX model of images on ONNX Runtime and OpenVINO, if they are installed."""
    images = np.random.default_rng(1).random((batch, 3, side, side), dtype=np.float32)
    runs: dict[str, Run] = {}
    with suppress(ImportError):
        runs["ONNX Runtime int8"] = partial(onnx_runtime(model, threads=threads), images)
    with suppress(ImportError):
        runs["OpenVINO int8"] = partial(openvino(model, images.shape, threads=threads), images)
    return runs
