"""Kernels are told apart by their names, and a window of them adds up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.profiling.kernels import (
    Kernel,
    Part,
    breakdown,
    covered_us,
    part_of,
    part_with_shapes,
    read_trace,
    totals,
)

# As PyTorch 2.11 with CUDA 13 and Megatron-Core print them, shortened where templates go on.
NAMES: list[tuple[Part, str]] = [
    ("attention", "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(...)"),
    ("attention", "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel>"),
    ("attention", "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64>>"),
    ("attention", "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>(Params)"),
    ("attention", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0"),
    ("attention", "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_kernel0_0"),
    ("attention", "void cudnn::fusion::compute_dot_do_o_specialized<true, __nv_bfloat16, float>(AttentionParams)"),
    ("attention", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)"),
    (
        "attention",
        "fmha_cutlassB_bf16_aligned_128x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel::Params)",
    ),
    ("attention", "triton_tem_fused_flex_attention_1"),
    ("attention", "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, SoftMaxForwardEpilogue>(...)"),
    ("attention", "void at::native::elementwise_kernel<128, 4, masked_fill_kernel(at::TensorIterator&)>(int)"),
    ("matrix products", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"),
    ("matrix products", "nvjet_hsh_192x192_64x4_2x1_v_bz_NTN"),
    ("matrix products", "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>"),
    ("matrix products", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_bias_f16"),
    ("matrix products", "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"),
    ("matrix products", "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(...)"),
    ("matrix products", "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4>(...)"),
    ("matrix products", "triton_tem_fused_addmm_relu_3"),
    ("head and cross entropy", "triton_red_fused__log_softmax__to_copy_view_12"),
    ("head and cross entropy", "triton_poi_fused__log_softmax__log_softmax_backward_data_nll_loss_backward_4"),
    ("head and cross entropy", "triton_red_fused_prepare_softmax_online_5"),
    ("head and cross entropy", "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>"),
    ("head and cross entropy", "void (anonymous namespace)::cunn_SoftMaxForward<8, float, LogSoftMaxForwardEpilogue>"),
    (
        "optimizer",
        "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>",
    ),
    ("optimizer", "void multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float, NormType::L2, float>>"),
    ("optimizer", "void transformer_engine::multi_tensor_adam::AdamFunctorMaster<float, float>(...)"),
    ("optimizer", "triton_for_fused_0"),
    ("elementwise and norms", "triton_per_fused_add_native_layer_norm_native_layer_norm_backward_7"),
    ("elementwise and norms", "triton_poi_fused_relu_threshold_backward_2"),
    ("elementwise and norms", "triton_red_fused_add_embedding_native_layer_norm_0"),
    ("elementwise and norms", "triton_poi_fused__scaled_dot_product_flash_attention_backward_clone_transpose_9"),
    ("elementwise and norms", "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"),
    ("elementwise and norms", "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>"),
    ("elementwise and norms", "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"),
    ("elementwise and norms", "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>"),
    ("elementwise and norms", "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>"),
    ("elementwise and norms", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps>>"),
    ("communication", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ("communication", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ("communication", "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)"),
    ("communication", "c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long, int, int, unsigned long)"),
    ("communication", "Memcpy PtoP (Device -> Device)"),
    ("copies", "Memcpy DtoH (Device -> Pinned)"),
    ("copies", "Memset (Device)"),
    ("other", "void something::nobody_has_seen_yet(float*)"),
]
TRACE: dict[str, Any] = {
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1, "args": {
            "External id": 7, "Input Dims": [[4096, 768], [768, 50304], [], [[3], [4]]]}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 2, "dur": 1, "args": {
            "External id": 8, "Input Dims": [[4096, 768], [768, 3072]]}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "ts": 130, "dur": 50, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "nvjet_tst_1", "ts": 100, "dur": 40, "args": {"External id": 7}},
        {"ph": "X", "cat": "kernel", "name": "nvjet_tst_1", "ts": 150, "dur": 20, "args": {"External id": 8}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 190, "dur": 10, "args": {"External id": 9}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "ts": 0, "dur": 500},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]
}  # fmt: skip


@pytest.mark.parametrize(("part", "name"), NAMES, ids=[name[:60] for _, name in NAMES])
def test_a_kernel_is_of_its_part(part: Part, name: str) -> None:
    """Kernels of every library that trains are put where they belong, by their names."""
    assert part_of(name) == part


def test_durations_add_up_by_part() -> None:
    """Two kernels of one part count together."""
    assert totals([("attention", 1.0), ("copies", 2.0), ("attention", 3.0)]) == {"attention": 4.0, "copies": 2.0}


def test_a_product_over_the_vocabulary_is_of_the_head() -> None:
    """By its name alone it would be any product; a weight that is copied is no logits."""
    shapes = ((4096, 768), (768, 50304))
    product = Kernel(name="nvjet_tst_1", start_us=0, duration_us=1, shapes=shapes)
    logits = Kernel(name="vectorized_elementwise_kernel", start_us=0, duration_us=1, shapes=((4096, 50304),))
    weight = Kernel(name="vectorized_elementwise_kernel", start_us=0, duration_us=1, shapes=((50304, 768),))
    assert part_with_shapes(product, {50304}) == "head and cross entropy"
    assert part_with_shapes(product, {50272}) == "matrix products"
    assert part_with_shapes(logits, {50304}) == "head and cross entropy"
    assert part_with_shapes(weight, {50304}) == "elementwise and norms"


def test_a_trace_is_read_and_broken_down() -> None:
    """Kernels come with the shapes of their operations; time that overlaps is covered once, and gaps are idle."""
    kernels = read_trace(TRACE)
    assert [kernel.name for kernel in kernels] == [
        "nvjet_tst_1", "ncclDevKernel_AllReduce_Sum_f32", "nvjet_tst_1", "Memcpy DtoH",
    ]  # fmt: skip
    assert kernels[0].shapes == ((4096, 768), (768, 50304), ())
    parts = breakdown(kernels, {50304})
    assert parts.window_s == pytest.approx(100e-6)
    assert parts.by_part == pytest.approx(
        {"head and cross entropy": 40e-6, "communication": 50e-6, "matrix products": 20e-6, "copies": 10e-6}
    )
    # All-reduce from 130 to 180, products from 100 to 140 and from 150 to 170.
    assert parts.exposed_s == pytest.approx(20e-6)
    assert parts.idle_s == pytest.approx(10e-6)
    name, part, seconds, count = parts.largest[0]
    assert (name, part, count) == ("ncclDevKernel_AllReduce_Sum_f32", "communication", 1)
    assert seconds == pytest.approx(50e-6)


def test_no_kernels_are_an_error() -> None:
    """A trace of a CPU is no breakdown of zeros."""
    with pytest.raises(ValueError, match="no kernel"):
        breakdown([])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_covered_time_is_counted_once(spans: list[tuple[int, int]]) -> None:
    """However kernels overlap, the time they cover is that of the microseconds in which one runs."""
    kernels = [Kernel(name="k", start_us=start, duration_us=length) for start, length in spans]
    assert covered_us(kernels) == len({moment for start, length in spans for moment in range(start, start + length)})
