"""The kernels for GPUs, in Triton and Gluon, and what compiles them without one."""
