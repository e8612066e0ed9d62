"""Classify the operators of ATen: they move, add, round or multiply values.

An audit looks at the operators that really run, below the names by which Python calls them.
Operators that are not listed here are reported as not checked.
"""

from typing import Literal

from torch._ops import OpOverload

Kind = Literal[
    "moves", "rounds", "random", "scales", "norm", "product", "contraction", "slope", "function"
]
"""``moves``: copies, selects, compares or adds values. ``rounds``: its results are integers.
``random``: draws numbers. ``scales``: multiplies by a fixed number. ``norm``: a batch norm.
``product``: multiplies values element by element. ``contraction``: adds products up, as matrices
and convolutions do. ``slope``: multiplies by a number that depends on the sign, so it does not fold
into a weight. ``function``: another function of real numbers."""


def _names(text: str, kind: Kind) -> dict[str, Kind]:
    return dict.fromkeys(text.split(), kind)


_KINDS: dict[str, Kind] = {
    **_names(
        """
        _add_relu _adaptive_avg_pool2d _adaptive_avg_pool3d _aminmax _assert_async _assert_scalar
        _assert_tensor_metadata _chunk_cat _coalesce _coalesced _conj_physical _copy_from
        _cummax_helper _cummin_helper _efficientzerotensor _functional_assert_async _index_put_impl
        _indices _is_all_true _is_any_true _lazy_clone _mkldnn_reshape _mkldnn_transpose
        _nested_tensor_from_mask _pack_padded_sequence _pad_packed_sequence _pin_memory
        _reshape_copy _stack _to_copy _to_dense _to_sparse _to_sparse_csr _unique _unique2
        _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_view _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d _values abs adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d add amax amin aminmax arange as_strided_scatter avg_pool1d avg_pool2d
        avg_pool3d block_diag cat channel_shuffle clamp clamp_max clamp_min clone col2im complex
        constant_pad_nd copy copysign cummax cummin cumsum diag_embed diagonal_scatter embedding
        empty empty_like empty_permuted empty_strided eye fill flip fmax fmin
        fractional_max_pool2d fractional_max_pool3d full full_like gather hardshrink hardtanh
        im2col index index_add index_copy index_fill index_put index_reduce index_select kthvalue
        lift lift_fresh lift_fresh_copy linspace masked_fill masked_scatter masked_select max
        max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d_with_indices
        max_unpool2d max_unpool3d maximum mean median min minimum mkldnn_adaptive_avg_pool2d
        mkldnn_max_pool2d mkldnn_max_pool3d mode nan_to_num nanmedian nansum neg new_empty
        new_empty_strided new_full new_ones new_zeros nonzero_static ones ones_like pixel_shuffle
        pixel_unshuffle put reflection_pad1d reflection_pad2d reflection_pad3d relu repeat
        repeat_interleave replication_pad1d replication_pad2d replication_pad3d resize resize_as
        roll rot90 rsub scalar_tensor scatter scatter_add scatter_reduce select_scatter set
        slice_scatter softshrink sort squeeze_ stack sub sum take threshold to_mkldnn
        to_padded_tensor topk trace tril triu unique_consecutive unique_dim unsafe_split
        unsafe_split_with_sizes upsample_nearest1d upsample_nearest2d upsample_nearest3d
        where zero zeros zeros_like
        """,
        "moves",
    ),
    **_names(
        """
        all any argmax argmin bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or
        bitwise_right_shift bitwise_xor bucketize ceil count_nonzero eq equal
        fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask
        _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams floor ge gt heaviside isin isinf
        isnan isneginf isposinf le logical_and logical_not logical_or logical_xor lt ne nonzero
        round searchsorted sgn sign signbit tril_indices triu_indices trunc
        """,
        "rounds",
    ),
    **_names(
        """
        _fill_mem_eff_dropout_mask bernoulli binomial cauchy exponential geometric log_normal
        multinomial native_dropout normal normal_functional poisson rand rand_like randint
        randint_like randn randn_like random randperm rrelu_with_noise uniform
        """,
        "random",
    ),
    **_names("deg2rad hardsigmoid rad2deg", "scales"),
    **_names("_prelu_kernel leaky_relu", "slope"),
    **_names(
        """
        _batch_norm_impl_index _batch_norm_no_update _batch_norm_with_update
        _batch_norm_with_update_functional _native_batch_norm_legit
        _native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm_elemt
        native_batch_norm
        """,
        "norm",
    ),
    **_names("addcdiv addcmul div lerp mul pow remainder fmod floor_divide square", "product"),
    **_names(
        """
        _addmm_activation _conv_depthwise2d _convolution _grouped_mm _int_mm _mkldnn_linear
        _nnpack_spatial_convolution _scaled_mm _slow_conv2d_forward _sparse_addmm _sparse_mm
        _sparse_mm_reduce_impl _sparse_sparse_matmul _trilinear _weight_int8pack_mm addbmm addmm
        addmv addr baddbmm bmm conv_depthwise3d conv_tbc convolution dot hspmm linear
        mkldnn_convolution mkldnn_linear mkldnn_rnn_layer mm mv slow_conv3d_forward
        slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d sspaddmm
        vdot
        """,
        "contraction",
    ),
    **_names(
        """
        _cdist_forward _compute_linear_combination _efficient_attention_forward _embedding_bag
        _embedding_bag_forward_only _euclidean_dist _fft_c2c _fft_c2r _fft_r2c
        _flash_attention_forward _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex
        _linalg_svd _log_softmax _logcumsumexp _masked_softmax _native_multi_head_attention
        _pdist_forward _safe_softmax _scaled_dot_product_attention_math_for_mps
        _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_fused_attention_overrideable _softmax
        _thnn_fused_gru_cell _thnn_fused_lstm_cell _transform_bias_rescale_qkv
        _transformer_encoder_layer_fwd _upsample_bicubic2d_aa _upsample_bilinear2d_aa
        _weight_norm_interface acos acosh affine_grid_generator asin asinh atan atan2 atanh
        batch_norm_gather_stats batch_norm_stats binary_cross_entropy
        binary_cross_entropy_with_logits celu cholesky cos cosh cumprod dist elu erf erfc erfinv exp
        exp2 expm1 frac gelu glu grid_sampler_2d grid_sampler_3d hardswish huber_loss hypot
        ldexp lgamma linalg_cholesky_ex linalg_cross linalg_eig linalg_inv_ex linalg_lu
        linalg_matrix_exp linalg_pinv linalg_qr linalg_vector_norm log log10 log1p log2
        log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logit logsumexp mish
        mse_loss native_group_norm native_layer_norm norm polar prod reciprocal renorm rsqrt sigmoid
        silu sin sinc sinh smooth_l1_loss softmax softplus sqrt std std_mean tan tanh
        upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_trilinear3d var var_mean
        xlogy
        """,
        "function",
    ),
}


def base_name(operator: OpOverload) -> str:
    """Return the name without namespace, overload and the underscore of in-place variants."""
    return operator._schema.name.partition("::")[2].rstrip("_")  # pyright: ignore[reportPrivateUsage]


def kind_of(operator: OpOverload) -> Kind | None:
    """Return what an operator does; None if it is not known."""
    if operator.namespace != "aten":
        return None
    name = base_name(operator)
    return "moves" if operator.is_view or name.endswith("_copy") else _KINDS.get(name)
