"""Replacements for operators that have no exact integer form."""


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
        "only zeros are padded; use padding_mode='zeros', or nn.ZeroPad2d",
        *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
    ),
    **_advice(
        "it weighs neighbours by real numbers; use mode='nearest', or a transposed convolution",
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d"),
        *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    ),
    **_advice(
        "a convolution cannot run over time; apply a Conv2d at every timestep with lbq.OverTime",
        *("conv3d", "conv_transpose3d"),
    ),
    **_advice("write it with @, permute and reshape", "tensordot", "bilinear"),
    **_advice(
        "it selects elements by their values, which a lowered network cannot do",
        *("item", "_local_scalar_dense", "where", "nonzero", "masked_select", "index"),
        *("masked_fill", "argmax", "topk", "sort", "gather", "embedding"),
    ),
    **_advice("random numbers differ between calls", "rand", "randn", "rand_like", "randn_like"),
}
"""Advice by the name of the operator, or by the class of the layer."""
