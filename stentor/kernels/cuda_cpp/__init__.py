"""Kernels in CUDA C++ for `kernels.skinny_gemm`: their sources, how NVRTC compiles them, and how they are launched."""
