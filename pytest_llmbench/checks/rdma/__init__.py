"""Checks of RDMA ports: InfiniBand, RoCE and EFA."""
