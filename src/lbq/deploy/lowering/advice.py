"""What to use instead of operators that have no exact integer form."""


def _advice(text: str, *names: str) -> dict[str, str]:
    return {f"aten.{name}": text for name in names}


ADVICE: dict[str, str] = {
    **_advice(
        "its statistics depend on the values, so it cannot be folded into weights; use a batch "
        "norm, such as nn.BatchNorm2d",
        *("layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "instance_norm"),
        *("rms_norm", "local_response_norm"),
    ),
    **_advice(
        "integers have no exponential; use products of levels without a softmax",
        *("softmax", "_softmax", "log_softmax", "scaled_dot_product_attention"),
        *("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    ),
    "MultiheadAttention": "it contains a softmax; use products of levels without one",
    **_advice(
        "real-valued activations have no levels; use a neuron, such as lbq.BurstLIF, in its place",
        *("relu", "relu6", "leaky_relu", "prelu", "elu", "celu", "selu", "gelu", "silu", "mish"),
        *("sigmoid", "hardsigmoid", "hardswish", "hardtanh", "tanh", "softplus", "clamp"),
        *("log_sigmoid", "glu", "softsign", "tanhshrink", "rrelu", "threshold"),
    ),
    **_advice(
        "its state is real-valued; use synapses and neurons, whose membranes are the state",
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"),
    ),
    **_advice(
        "only zeros are padded, by the convolution or the pool itself; write padding=1 or so there",
        *("pad", "constant_pad_nd", "reflection_pad2d", "replication_pad2d"),
    ),
    **_advice(
        "it takes a part of a tensor; apply layers to all timesteps at once with lbq.OverTime, and "
        "average over time behind the classifier",
        *("select", "slice", "unbind", "index", "split", "split_with_sizes", "chunk", "narrow"),
    ),
    **_advice(
        "use a mean over time or an average pool", "sum", "amax", "max", "adaptive_max_pool2d"
    ),
    **_advice(
        "a lowered network may not depend on single values of a tensor",
        *("item", "_local_scalar_dense", "where", "nonzero", "masked_select"),
    ),
    **_advice("only positive multiples are added", "neg"),
    **_advice(
        "random numbers differ from call to call", "rand", "randn", "rand_like", "randn_like"
    ),
}
"""What to use instead of operators, and of layers by their class, that have no exact integers."""
