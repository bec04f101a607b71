"""Kernels in CUDA C++ for `kernels.hopper_gemm`: sources, tables of tiles, how NVRTC compiles and how they are launched."""
