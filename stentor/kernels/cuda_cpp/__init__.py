"""Kernels in CUDA C++ for `kernels.hopper_gemm`: sources, tables of tiles, compilation by NVRTC,
and launches."""
